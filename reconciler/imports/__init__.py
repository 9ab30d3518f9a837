"""Other schedulers' jobs as Job documents, and Job documents as theirs, for people who come and for people who leave.

Belongs here: pure readers and writers (text in; documents, notes and refusals out), one a format. What has no
counterpart is a note with its line, never silence. Does not belong here: files, the cluster, deciding.
"""
