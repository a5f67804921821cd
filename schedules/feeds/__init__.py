"""Feeds: when each feed is fetched so that few posts are lost and few wait.

`post_rates` estimates how feeds post, and what an interval between two fetches loses; `placement`
puts fetches, `optimal` shares them out over all feeds as `allocation` does for pages. `plan` makes
the plan, and has the policies of the papers: uniform, least delay (Sia and Cho 2007) and minimum
missing (MP = TP - sum of PPA, PPA = min(TP, S)). A feed's past is its posts; pages are not planned
here.
"""
