"""Estimation: how often each target changes, and in which hours of the local week.

`rates` is the mathematics of single targets and sites: likelihoods of pasts under a Poisson process
with a weekly profile, mixtures of profiles that the targets of a site share, a hierarchical prior
of rates (empirical Bayes), and which sites' stated dates are reliable. `estimate` applies it to all
targets. Bursts are taken together as in Cho, Lee and Choi 2013. It decides about no visit.
"""
