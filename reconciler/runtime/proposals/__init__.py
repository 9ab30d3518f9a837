"""Verbs that change what is desired: edits of people's files, proposed on a branch, never pushed to main.

Belongs here: which file a verb edits and how, the commit in the person's name, the pull request, and following it until
ranks run. Does not belong here: words on a terminal (`cli`), how YAML is edited (`documents.edit`), deciding.
"""
