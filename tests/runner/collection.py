"""A small collection of texts, written for the tests: passages, and questions with the passage that answers each."""

from __future__ import annotations

PASSAGES = (
    "Forgotten passwords are reset from the sign-in page; the link that you get by mail is valid for one hour.",
    "An invoice can be paid by bank transfer or card within thirty days of its date.",
    "Parcels that weigh more than thirty kilograms are delivered by a haulier, who calls the day before.",
    "The heat pump draws warmth from the outside air and works down to twenty degrees of frost.",
    "Bleed a radiator with the small key until water comes out instead of air.",
    "A dripping tap usually needs a new washer; turn the water off before you open it.",
    "Sourdough wants a long, cool rest before baking, otherwise the crumb stays dense.",
    "Simmer the beans for two hours and salt them only at the end, or their skins turn hard.",
    "Rising interest rates make bonds that were issued earlier lose value.",
    "The central bank buys government debt when it wants more money in circulation.",
    "A pod that exceeds its memory limit is killed and started again by the scheduler.",
    "Roll the deployment back to the last version when health checks fail after a release.",
    "An index on the columns of the join spares the database from reading the whole table.",
    "Bees tell each other by dancing how far away flowers are, and in which direction.",
    "Owls hunt by hearing: one ear is higher than the other, which tells them the height of a sound.",
    "The last glacier of the range has lost half of its area since the first maps were drawn.",
    "In chess, a pawn that reaches the far row becomes any piece but a king.",
    "The violin is tuned in fifths, the guitar mostly in fourths.",
    "A fever of more than forty degrees that lasts for a day should be seen by a doctor.",
    "Stretch the calf after running, with the heel on the ground and the knee straight.",
)
QUESTIONS = (
    ("How do I get a new password?", 0),
    ("How do I get the air out of my radiator?", 4),
    ("My kitchen tap leaks, what can I do?", 5),
    ("Why is my bread so heavy?", 6),
    ("What happens to old bonds when rates go up?", 8),
    ("container restarts because it runs out of memory", 10),
    ("query is slow, full table scan", 12),
    ("How do bees communicate?", 13),
    ("how do owls find mice in the dark", 14),
    ("When should a high temperature worry me?", 18),
)
