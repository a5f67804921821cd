"""Estimation: how often each target changes, and in which hours of the local week.

`rates` has the mathematics for single targets and sites: likelihoods of histories under a Poisson
process with a weekly profile, mixtures of profiles shared by the targets of a site, a hierarchical
prior of rates (empirical Bayes), and a test of which sites state reliable dates. `estimate` applies
them to all targets. Bursts of changes count as one, as in Cho, Lee and Choi (2013).
"""
