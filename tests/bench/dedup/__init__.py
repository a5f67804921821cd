"""The experiment of Lee, Lee, Kim 2010 on near-duplicate detection, compared with other methods."""
