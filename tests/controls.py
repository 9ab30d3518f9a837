"""Does a test fail when what it is there for is taken away? `python -m tests.controls [WORD…]`, run by hand.

Each row removes one control from a copy of the repository, runs the test that `.github/SECURITY.md` names for it, and
expects it to fail. WORDs choose rows by file or test. It prints what the test said, so that a person sees that it failed
for this and not for a slip of the removal; it ends with 1 when a test passed or was skipped. Nothing here is touched.
`test_security_page.py` checks that every row of that page has one, and that what is removed is still there to be removed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600


@dataclass(frozen=True)
class Control:
    """Where a control stands, its text (which is there once), what is put in its place, and the test that must fail.

    `also` are files with a text and its place-taker each, where one control stands behind another.
    """

    file: str
    text: str
    instead: str
    test: str
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def removals(self) -> tuple[tuple[str, str, str], ...]:
        """Every text that goes: its file, the text, and what is put in its place."""
        return ((self.file, self.text, self.instead), *self.also)


CONTROLS = (
    # --- threats ---
    Control(
        "reconciler/render/plan/escape.py",
        "return shown.translate(_ENTITIES).replace(_HERE, _GAP)",
        "return shown.replace(_HERE, _GAP)",
        "tests/render/test_plan.py::test_a_whole_plan_of_anybody_s_text_is_harmless_in_every_form",
    ),
    Control(
        "reconciler/store/runner.py",
        '"GIT_CONFIG_COUNT": str(len(config)),',
        '"GIT_CONFIG_COUNT": "0",',
        "tests/store/test_gitops_faults.py::test_g28_reading_a_hostile_clone_runs_nothing_of_it",
    ),
    Control(
        "reconciler/store/runner.py",
        '"GIT_CONFIG_COUNT": str(len(config)),',
        '"GIT_CONFIG_COUNT": "0",',
        "tests/runtime/test_preview.py::test_a_plan_over_a_hostile_head_runs_git_and_nothing_else",
    ),
    Control(
        "reconciler/render/plan/markdown.py",
        "        if len(told) < limit:\n",
        "        if told:\n",
        "tests/runtime/test_preview.py::test_g25_four_thousand_moves_fit_into_a_comment_and_say_what_is_left_out",
        (("reconciler/render/plan/markdown.py", "_Detail(rows=200, victims=100,", "_Detail(rows=9999, victims=9999,"),),
    ),
    Control(
        "reconciler/render/plan/markdown.py",
        "        if len(told) < limit:\n",
        "        if told:\n",
        "tests/render/test_plan.py::test_no_plan_is_too_large_for_a_comment",
    ),
    Control(
        "reconciler/store/names.py",
        'if not url or url.startswith("-") or _WORDS_THAT_HURT.search(url):',
        "if not url:",
        "tests/store/test_runner.py::test_addresses_that_are_commands_options_or_secrets_are_refused",
    ),
    Control(
        "reconciler/store/trees.py",
        "if entry.mode != REGULAR:",
        "if False:",
        "tests/store/test_trees.py::test_executable_files_are_refused_by_mode",
    ),
    Control(
        "reconciler/documents/loader.py",
        "if len(self.path) >= self.limits.max_depth:",
        "if False:",
        "tests/documents/test_loader.py::test_hostile_content_is_refused_quickly_and_briefly",
    ),
    Control(
        "reconciler/agent/rank.py",
        "            prctl(_PR_SET_NO_NEW_PRIVS, 1)\n        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after",
        "            pass\n        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after",
        "tests/agent/test_confined.py::test_a_setuid_program_gives_nothing",
    ),
    Control(
        "reconciler/agent/beneath.py",
        "os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC",
        "tests/agent/test_beneath.py::test_secrets_never_come_from_outside_while_links_are_swapped",
    ),
    Control(
        "reconciler/agent/rotate.py",
        "os.O_APPEND | os.O_NOFOLLOW",
        "os.O_APPEND",
        "tests/agent/test_limits.py::test_a_log_is_never_written_through_a_link",
    ),
    Control(
        "reconciler/agent/cgroups.py",
        '*(["devices.deny", f"{device} rwm"] for device in foreign_gpus)',
        "",
        "tests/agent/test_cgroups.py::test_the_gpus_of_others_cannot_be_opened",
    ),
    Control(
        "reconciler/agent/cgroups.py",
        '"pids": [pids],',
        '"pids": [],',
        "tests/agent/test_cgroups.py::test_a_fork_bomb_ends_at_the_limit",
    ),
    Control(
        "reconciler/agent/rotate.py",
        "if rate <= 0:",
        "if True:",
        "tests/agent/test_limits.py::test_a_log_has_a_size_and_a_rate",
    ),
    Control(
        "reconciler/agent/runtimes.py",
        'return Start(tuple(argv), _host(work), "/", Hidden(at, "--env"), no_new_privs=False',
        'return Start(tuple(argv), dict(work.env), "/", Hidden(at, "--env"), no_new_privs=False',
        "tests/agent/test_runtimes.py::test_podman_gets_the_attempts_gpus_by_cdi_and_nothing_of_the_jobs_environment",
    ),
    Control(
        "reconciler/agent/limits.py",
        "if not is_allowed(image, limits.registries):",
        "if False:",
        "tests/agent/test_runtimes.py::test_what_a_container_may_not_have_is_refused_by_name",
    ),
    Control(
        "reconciler/agent/limits.py",
        "if user.pw_uid < max(1, limits.lowest_uid):",
        "if False:",
        "tests/agent/test_limits.py::test_a_user_below_the_lowest_uid_or_not_listed_is_refused",
    ),
    Control(
        "reconciler/agent/limits.py",
        '_check_beneath("Secret", secret, _root_of(secret, limits.secret_roots, "Secret", "limits.secretRoots"))',
        '_root_of(secret, limits.secret_roots, "Secret", "limits.secretRoots")',
        "tests/agent/test_confined.py::test_secrets_lie_beneath_their_roots_and_no_link_leads_there",
    ),
    Control(
        "reconciler/runtime/requests.py",
        "if not may_ask(who, person):",
        "if False:",
        "tests/runtime/test_requests.py::test_what_may_not_be_is_refused_on_record",
    ),
    Control(
        "reconciler/runtime/provenance.py",
        "Proof.SIGNATURE if of_author else proven if brought is meta else Proof.NONE",
        "Proof.SIGNATURE",
        "tests/runtime/test_people.py::test_a_name_in_a_commit_is_no_account",
    ),
    Control(
        "reconciler/engines/server.py",
        "if report.node != node:",
        "if False:",
        "tests/engines/test_server.py::test_a_node_may_speak_of_itself_alone",
    ),
    Control(
        "reconciler/engines/enrolment.py",
        'if used_by not in ("", key):',
        "if False:",
        "tests/engines/test_enrolment.py::test_a_token_is_good_once",
    ),
    Control(
        "reconciler/engines/server.py",
        "if revoked:",
        "if False:",
        "tests/engines/test_enrolment.py::test_a_revoked_certificate_is_refused_at_once_on_an_open_connection_too",
    ),
    Control(
        "reconciler/agent/identity.py",
        "if _fingerprint(authority) != fingerprint:",
        "if False:",
        "tests/engines/test_enrolment.py::test_an_agent_shows_its_token_to_no_other_server",
    ),
    Control(
        "reconciler/agent/verify.py",
        "    check_signature(payload, signature, trust)\n",
        "",
        "tests/agent/test_run.py::test_a_forged_order_is_reported_and_nothing_of_it_is_done",
    ),
    Control(
        "reconciler/agent/visits.py",
        "self._challenges.use(asked.challenge)",
        "pass",
        "tests/agent/test_visits.py::test_a_server_that_shows_a_request_twice_gets_one_visit_of_the_node",
    ),
    Control(
        "reconciler/agent/pam.py",
        "if place.uid == uid and place.runs()]",
        "if place.runs()]",
        "tests/agent/test_pam.py::test_everybody_else_is_refused",
    ),
    Control(
        "reconciler/runtime/audit/people.py",
        "if expected.get(key) != recorded.get(key)]",
        "if False]",
        "tests/runtime/test_audit_insider.py::test_a_decision_on_forged_inputs_is_found",
    ),
    Control(
        "reconciler/runtime/bell.py",
        'return hmac.compare_digest(signed.encode("utf-8", "replace"), made.encode())',
        "return bool(signed)",
        "tests/runtime/test_bell.py::test_who_knows_the_secret_is_the_forge",
    ),
    Control(
        "reconciler/store/publish.py",
        "--force-with-lease={ref}:{expected or ''}",
        "--force",
        "tests/store/test_publish.py::test_many_races_end_in_one_linear_chain",
    ),
    Control(
        "reconciler/store/publish.py",
        "if published is None or is_in_record(mirror.git, published, tip):",
        "if True:",
        "tests/store/test_publish.py::test_rewound_rewritten_deleted_and_absent_branches_are_refused",
    ),
    Control(
        "reconciler/runtime/audit/people.py",
        "if expected.get(key) != recorded.get(key)]",
        "if False]",
        "tests/runtime/test_audit_insider.py::test_a_decision_on_forged_inputs_is_found",
    ),
    Control(
        "reconciler/render/plan/edits.py",
        'after="(value changed)")',
        "after=after[name])",
        "tests/runtime/test_preview.py::test_g26_the_value_of_a_variable_is_printed_nowhere",
    ),
    Control(
        "reconciler/runtime/forge/comment.py",
        'query = {"state": "open", "head": f"{event.owner}:{event.branch}"}',
        'query = {"state": "open", "head": event.branch}',
        "tests/runtime/forge/test_comment.py::test_g27_a_fork_is_found_by_owner_branch_and_head_and_the_artefact_has_no_say",
    ),
    Control(
        "reconciler/runtime/forge/comment.py",
        'if err.code in {"Forbidden", "NotThere"}:',
        'if err.code == "NotThere":',
        "tests/runtime/forge/test_comment.py::test_g27_without_the_permission_it_is_a_notice_and_no_failure",
    ),
    # --- what an agent refuses ---
    Control(
        "reconciler/agent/verify.py",
        'if object_id("blob", proof.file) != expected:',
        "if False:",
        "tests/agent/test_verify.py::test_a_broken_chain_is_refused_by_name",
    ),
    Control(
        "reconciler/agent/verify.py",
        'if re.search(rb"^gpgsig-sha256\\b", head, re.MULTILINE):',
        "if False:",
        "tests/agent/test_verify.py::test_a_broken_chain_is_refused_by_name",
    ),
    Control(
        "reconciler/agent/verify.py",
        'if found["cluster-id"][0] != cluster:',
        "if False:",
        "tests/agent/test_verify.py::test_a_broken_chain_is_refused_by_name",
    ),
    Control(
        "reconciler/agent/verify.py",
        "if found[0][0] != mode:",
        "if False:",
        "tests/agent/test_verify.py::test_a_broken_chain_is_refused_by_name",
    ),
    Control(
        "reconciler/agent/verify.py",
        "if (epoch, generation) < (held.epoch, held.generation):",
        "if False:",
        "tests/agent/test_verify.py::test_epoch_and_generation_never_go_back",
    ),
    Control(
        "reconciler/agent/verify.py",
        'command += ["-r", str(revoked)] if revoked else []',
        "",
        "tests/agent/test_verify.py::test_a_revoked_key_does_not_count",
    ),
    Control(
        "reconciler/agent/verify.py",
        'if [option.partition("=")[2] for option in named] != [\'"git"\']:',
        "if False:",
        "tests/agent/test_verify.py::test_signers_without_exactly_the_git_namespace_are_not_trusted",
    ),
    Control(
        "reconciler/agent/verify.py",
        "    check_signature(payload, signature, trust)\n",
        "",
        "tests/agent/test_verify.py::test_a_key_counts_only_while_it_is_valid",
    ),
    Control(
        "reconciler/agent/verify.py",
        "    check_signature(payload, signature, trust)\n",
        "",
        "tests/agent/test_verify.py::test_a_key_of_another_principal_does_not_count",
    ),
    # --- faults ---
    Control(
        "reconciler/runtime/loop.py",
        'if not isinstance(err, Unreachable) and err.code != "SourceMissing":',
        "if True:",
        "tests/runtime/test_loop.py::test_with_a_record_of_its_own_work_goes_on_while_the_forge_is_away",
    ),
    Control(
        "reconciler/store/failures.py",
        'r"No space left on device|Out of diskspace|',
        'r"',
        "tests/store/test_mirror.py::test_g24_full_disk_is_told_apart_and_heals",
    ),
    Control(
        "reconciler/store/publish.py",
        "if tip is not None and is_ancestor(mirror.git, commit, tip):",
        "if False:",
        "tests/store/test_publish.py::test_lost_answer_is_a_success_when_our_commit_is_the_tip",
    ),
    Control(
        "reconciler/runtime/loop.py",
        "        self._engine_started = True\n        self._apply(current)\n",
        "        self._engine_started = True\n",
        "tests/e2e/test_cluster.py::test_a_reconciler_killed_between_commit_push_and_apply_continues",
    ),
    Control(
        "reconciler/runtime/loop.py",
        "            outcome.raise_for_result()\n",
        "",
        "tests/runtime/test_loop.py::test_g07_a_rule_of_the_remote_needs_a_person_and_nothing_is_applied",
    ),
    Control(
        "reconciler/agent/journal.py",
        'if checksum != b"%08x" % zlib.crc32(content):',
        "if False:",
        "tests/agent/test_journal.py::test_a_flipped_bit_ends_the_journal_there",
    ),
    Control(
        "reconciler/agent/journal.py",
        "        os.ftruncate(self._fd, self._end)\n        os.lseek(self._fd, 0, os.SEEK_END)\n\n    def accept",
        "        os.lseek(self._fd, 0, os.SEEK_END)\n\n    def accept",
        "tests/agent/test_journal.py::test_a_journal_torn_at_any_byte_holds_the_whole_lines_before",
    ),
    Control(
        "reconciler/agent/journal.py",
        "                os.ftruncate(self._fd, self._end)\n",
        "                pass\n",
        "tests/agent/test_journal.py::test_a_full_disk_loses_nothing_that_was_promised",
    ),
    Control(
        "reconciler/agent/runtime.py",
        "            self.roster.journal.records[key] = record  # not written down: not launched, tried again next time\n            return\n",
        "            self.roster.journal.records[key] = record\n",
        "tests/agent/test_keeper.py::test_a_launch_that_cannot_be_written_down_waits_until_it_can",
    ),
    Control(
        "reconciler/agent/runtime.py",
        "                raise RefusedOrder(err.message, code=err.code) from err\n",
        "                self.say(err.message)\n",
        "tests/agent/test_run.py::test_a_full_disk_starts_nothing_new_and_keeps_what_runs",
    ),
    Control(
        "reconciler/runtime/loop.py",
        "now = Instant(max(self._clock.now(), current.allocation.decided_at))",
        "now = self._clock.now()",
        "tests/runtime/test_node_faults.py::test_a_clock_that_jumps_judges_no_node_and_recorded_time_never_goes_back",
        (
            ("reconciler/planner/decide.py", "now = Instant(max(now, previous.decided_at))", "pass"),
            ("reconciler/planner/still.py", "at = Instant(max(now, previous.decided_at))", "at = now"),
            (
                "reconciler/runtime/generation.py",
                "return max(inputs.now, inputs.previous.allocation.decided_at)",
                "return inputs.now",
            ),
            ("reconciler/planner/verify/lifetime.py", " or new.decided_at < old.decided_at:", ":"),
        ),
    ),
    Control(
        "reconciler/agent/folder.py",
        "return noted == (-1 if deadline is None else deadline)",
        "return False",
        "tests/agent/test_clock.py::test_an_agent_that_starts_after_a_jump_leaves_a_deadline_where_it_was",
    ),
    Control(
        "reconciler/agent/proc.py",
        "return time.clock_gettime_ns(time.CLOCK_BOOTTIME)",
        "return time.time_ns()",
        "tests/agent/test_clock.py::test_a_wall_clock_that_jumps_neither_ends_nor_lengthens_a_lease",
    ),
    Control(
        "reconciler/agent/verify.py",
        "    if (epoch, generation) < (held.epoch, held.generation):\n",
        "    if False:\n",
        "tests/agent/test_clock.py::test_a_wall_clock_that_jumps_back_leads_nobody_to_an_older_order",
    ),
    Control(
        "reconciler/engines/silence.py",
        """    if silence.heard and silence.silent <= rules.unreachable_after:
        return NodeCondition.READY
    reached = NodeCondition.READY
    if silence.since_listening > rules.unreachable_after:
""",
        """    if silence.silent == 0:
        return NodeCondition.READY
    reached = NodeCondition.READY
    if True:
""",
        "tests/runtime/test_node_faults.py::test_an_agent_silent_for_less_than_the_limit_costs_nothing",
    ),
    Control(
        "reconciler/agent/roster.py",
        "        self.boot = proc.boot_id()\n",
        '        self.boot = f"{proc.boot_id()}-{threading.get_native_id()}"  # as if each agent began anew\n',
        "tests/e2e/test_cluster.py::test_an_agent_that_is_killed_leaves_its_ranks_and_adopts_them_again",
    ),
    Control(
        "reconciler/engines/sessions.py",
        "confirmed_dead=lost and self._declared.get(node, False),",
        "confirmed_dead=lost,",
        "tests/e2e/test_faults.py::test_an_agent_that_hangs_loses_its_node_and_none_of_its_ranks",
    ),
    Control(
        "reconciler/engines/sessions.py",
        "confirmed_dead=lost and self._declared.get(node, False),",
        "confirmed_dead=lost,",
        "tests/e2e/test_faults.py::test_a_node_whose_link_is_cut_either_way_keeps_its_ranks_and_nothing_starts_elsewhere",
    ),
    Control(
        "reconciler/agent/shim.py",
        "if now >= self.lease:",
        "if False:",
        "tests/agent/test_run.py::test_a_lease_that_is_not_renewed_ends_the_work_without_any_agent",
    ),
    Control(
        "reconciler/agent/limits.py",
        "        _check_ports(order, conf.address)\n",
        "",
        "tests/agent/test_run.py::test_a_busy_port_is_refused_at_prepare",
    ),
    Control(
        "reconciler/planner/steps.py",
        "return _rank_failed(scene, failed) if failed is not None else None",
        "return None",
        "tests/e2e/test_faults.py::test_a_killed_rank_ends_the_gang_everywhere_and_it_resumes_from_its_checkpoint",
    ),
    Control(
        "reconciler/planner/steps.py",
        "    if not all(sight.fenced(record.fence) for sight in sights):\n        return record\n    return _after_release",
        "    return _after_release",
        "tests/runtime/test_node_faults.py::test_a_victim_that_ignores_its_signal_is_gone_before_the_preemptor_prepares",
    ),
    Control(
        "reconciler/planner/steps.py",
        "phase = Phase.CHECKPOINT if saves else Phase.STOP",
        "phase = Phase.STOP",
        "tests/e2e/test_cluster.py::test_a_victim_checkpoints_is_seen_gone_and_resumes_where_it_was",
    ),
    Control(
        "reconciler/agent/shim.py",
        "            self._signal_all(signal.SIGKILL)\n            self.kill_at",
        "            self.kill_at",
        "tests/agent/test_run.py::test_what_ignores_sigterm_or_hides_in_another_session_is_killed",
    ),
    Control(
        "reconciler/agent/attempts.py",
        "    if not alive and not seen.launching and (failed or not missing):\n",
        "    if not seen.launching and (failed or not missing):\n",
        "tests/agent/test_attempts.py::test_nothing_is_ever_released_while_a_process_is_left",
    ),
    Control(
        "reconciler/agent/rank.py",
        "        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after",
        "        # after",
        "tests/agent/test_run.py::test_a_shim_that_is_killed_while_no_agent_is_there_takes_its_rank_along",
    ),
    Control(
        "reconciler/agent/attempts.py",
        "    actions += [Action(Do.SWEEP, p.rank) for p in seen.launched if p.alive and p.lost]\n",
        "",
        "tests/agent/test_run.py::test_killed_shims_take_all_of_their_ranks_along_and_it_is_seen_at_once",
    ),
    Control(
        "reconciler/agent/shim.py",
        "return signum != signal.SIGKILL or not isinstance(killed, int) or proc.boottime() < killed + CLEAR_AWAY",
        "return False",
        "tests/agent/test_podman.py::test_a_gang_in_real_containers_runs_saves_and_is_gone",
    ),
    Control(
        "reconciler/agent/proc.py",
        "return pid > 0 and start > 0 and start_time(pid) == start",
        "return pid > 0 and start_time(pid) > 0",
        "tests/agent/test_keeper.py::test_a_pid_that_came_round_again_is_neither_adopted_nor_killed",
    ),
    Control(
        "reconciler/agent/runtime.py",
        "if record.boot != self.roster.boot:",
        "if False:",
        "tests/agent/test_keeper.py::test_after_a_reboot_nothing_is_adopted",
    ),
    Control(
        "reconciler/planner/capacity.py",
        "whole & health.good & ~node.failed",
        "whole & ~node.failed",
        "tests/runtime/test_node_faults.py::test_a_gpu_that_fails_under_a_gang_is_given_to_nobody",
    ),
    Control(
        "reconciler/planner/capacity.py",
        "whole & health.good & ~node.failed",
        "whole & ~node.failed",
        "tests/e2e/test_drift.py::test_a_gpu_that_fell_off_the_bus_is_given_to_nobody_and_a_hot_one_is_told_before_the_merge",
    ),
    Control(
        "reconciler/engines/silence.py",
        "return silent >= 2 and silent * 1_000_000 > rules.mass_loss_ppm * expected",
        "return False",
        "tests/engines/contract.py::test_a_restart_that_hears_nobody_judges_nobody",
    ),
    Control(
        "reconciler/engines/silence.py",
        "return silent >= 2 and silent * 1_000_000 > rules.mass_loss_ppm * expected",
        "return False",
        "tests/runtime/test_standby.py::test_a_reconciler_that_loses_its_own_link_fails_nothing_over",
    ),
    Control(
        "reconciler/engines/silence.py",
        "        return 2 * heard > expected\n",
        "        return False\n",
        "tests/e2e/test_standby.py::test_the_standby_leads_within_thirty_seconds_and_ranks_are_untouched",
    ),
    Control(
        "reconciler/engines/silence.py",
        "        return 2 * heard > expected\n",
        "        return True\n",
        "tests/runtime/test_standby.py::test_a_few_nodes_that_lost_the_leader_do_not_make_another",
    ),
    Control(
        "reconciler/store/publish.py",
        "--force-with-lease={ref}:{expected or ''}",
        "--force",
        "tests/runtime/test_killed.py::test_two_reconcilers_that_race_make_one_chain_and_no_agent_obeys_the_loser",
    ),
    Control(
        "reconciler/engines/slurm/fence.py",
        "        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "tests/engines/test_slurm.py::test_two_reconcilers_with_one_decision_submit_it_once",
    ),
    Control(
        "reconciler/engines/slurm/fence.py",
        "return Turn.OVER if order < newest else Turn.OURS",
        "return Turn.OURS",
        "tests/engines/test_slurm.py::test_a_reconciler_whose_git_is_cut_starts_nothing_that_was_decided_over",
    ),
    Control(
        "reconciler/engines/slurm/script.py",
        'if [ -s "$folder/{ended}" ]; then #',
        "if false; then #",
        "tests/engines/test_slurm.py::test_a_submission_that_comes_in_after_its_attempt_has_ended_does_nothing",
    ),
    Control(
        "reconciler/engines/slurm/fence.py",
        "        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "tests/e2e/test_slurm_loop.py::test_two_reconcilers_over_one_slurm_submit_each_decision_once_and_none_that_lost",
    ),
)


@contextmanager
def copied() -> Iterator[Path]:
    """What git knows of this repository, as it is now, with the corpus beside it."""
    with tempfile.TemporaryDirectory(prefix="gangops-controls-") as folder:
        copy = Path(folder, "repository")
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        Path(folder, "shared").symlink_to(ROOT.parent / "shared")
        yield copy


@contextmanager
def removed(control: Control, copy: Path) -> Iterator[None]:
    """The copy without the control. Raises ValueError, when a text does not stand there exactly once."""
    whole = {file: (copy / file).read_text(encoding="utf-8") for file, _, _ in control.removals}
    try:
        for file, text, instead in control.removals:
            source = (copy / file).read_text(encoding="utf-8")
            if source.count(text) != 1:
                raise ValueError(f"{file} has {text!r} {source.count(text)} times")
            (copy / file).write_text(source.replace(text, instead), encoding="utf-8")
        yield
    finally:
        for file, source in whole.items():
            (copy / file).write_text(source, encoding="utf-8")


def missed(control: Control, copy: Path) -> tuple[bool, str]:
    """Whether its test failed without it, and what it said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *_chosen(control.test)]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with removed(control, copy):
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    said = re.findall(r"^(?:E  |SKIPPED).*", done.stdout, re.MULTILINE) or done.stdout.splitlines()[-1:]
    return done.returncode == 1, said[0].removeprefix("E").strip() if said else done.stderr[-200:]


def _chosen(test: str) -> list[str]:
    """What pytest is given for it. A test of the contract is in every class that is held to it: pretended nodes will do."""
    file, _, name = test.partition("::")
    if file.endswith("/contract.py"):
        return ["tests/engines/test_contract.py", "-k", f"Fake and {name}"]
    in_class = re.search(rf"^ +(?:async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return [file, "-k", name] if in_class else [test]


def main(words: Sequence[str]) -> int:
    """One line for each row, and 1 when a control is missed by nobody."""
    chosen = [c for c in CONTROLS if not words or any(word in c.file + c.test for word in words)]
    passed = 0
    with copied() as copy:
        for control in chosen:
            began = time.monotonic()
            fails, said = missed(control, copy)
            passed += not fails
            verdict = "fails" if fails else "PASSES"
            print(f"{verdict:6}  {time.monotonic() - began:5.1f} s  {control.test}\n        {said[:110]}", flush=True)
    print(f"{len(chosen) - passed} of {len(chosen)} tests fail without their control")
    return 1 if passed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
