"""Scenarios: small clusters with one right answer, as unit tests for a cluster's rules.

Belongs here: a scenario as the planner's inputs (`build`, `past`), the decision in the format's words (`plan`), and its
judges (`rules`, `harm`, `expect`), which know the scenario and the plan alone. Does not belong here: reading the file
(documents), deciding (planner), options and exit statuses (cli).
"""
