"""WebSub: hubs are asked to send what feeds publish, and what they send is stored."""
