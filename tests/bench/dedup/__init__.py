"""The experiment of Lee, Lee, Kim 2010: how near-duplicates are found, by them and by others."""
