"""Trainings of a comparison, a study or a paper: what they are, where they are, who trains them.

A campaign (such as a comparison) is a plan: it makes jobs (`job`), gives each a run folder
(`folder`), and lets the `executor` train those that are not finished. A launcher (`launchers`)
decides in which process a job is trained.
"""
