"""The screen: a draft is text until its syntax tree holds nothing but what the allow-lists name."""
