"""What a text is compared by: its normal form, shingles, MinHash signature and bands. Pure."""
