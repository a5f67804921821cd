"""What searches compare: words of posts, a user's query, passages around hits. Pure."""
