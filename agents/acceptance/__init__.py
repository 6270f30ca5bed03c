"""What stands between a draft and the catalogue: nothing the drafter says is believed."""
