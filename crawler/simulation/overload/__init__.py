"""More requests than one server can serve: what each policy makes of them."""
