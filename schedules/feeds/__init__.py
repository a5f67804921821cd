"""Plan feeds: choose when to fetch each feed so that few posts are missed and few wait.

`post_rates` estimates how feeds post, and what an interval between two fetches misses. `optimal`
places the fetches of each feed and divides the budget among all feeds, as `allocation` does for
pages. `plan` makes the plan and implements the policies of the papers: uniform, minimum
delay (Sia and Cho 2007) and minimum missing (MP = TP - sum of PPA, PPA = min(TP, S)). The history
of a feed is its posts.
"""
