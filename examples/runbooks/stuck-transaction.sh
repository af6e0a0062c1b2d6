#!/usr/bin/env bash
# What to do about a transaction that does not end: find what is stuck, end what
# may be ended, and say what may not.
#
#   stuck-transaction.sh [--yes] [--wait DURATION] [TRANSACTIONAL-ID...]
#
# Whose owner is known is fenced, if it is named or has outlived its timeout. What
# nobody owns any more gets its end marker. What is being committed is never
# aborted. Without --yes, or with DRY_RUN=1, it looks and rehearses, and changes
# nothing. --wait (2m) bounds each of its waits.
# The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

limit=2m
named=()
while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	--wait)
		[ -n "${2-}" ] || wrong "--wait needs a duration"
		limit=$2
		shift
		;;
	-h | --help) usage && exit ;;
	-*) wrong "not an argument: $1" ;;
	*) named+=("$1") ;;
	esac
	shift
done
need "$KSHARE" jq
decided=() # transactional IDs whose commit is decided

step "1. Find: transactions that hold consumers back, and records that are in TX_PENDING"
try txn find-hanging
try inspect pending
look
tell

step "2. Owner known, by name: fence it"
for id in ${named[@]+"${named[@]}"}; do
	ask inspect txn -- "$id"
	[ "$code" = 0 ] || stop "$code" "where $id stands could not be found out"
	state=$(answered '.items[0].state')
	case $state in
	Ongoing | PrepareAbort | PrepareEpochFence)
		note "$id is $state: its producer is fenced, and it is aborted"
		try txn fence "$(consent)" --timeout "$limit" -- "$id"
		case $code in
		0) ;;
		6) decided+=("$id") ;; # since a moment ago
		7) stop 6 "escalate to who runs the brokers: $id is being aborted, and its markers do not arrive: look at its coordinator, and at the leaders of its partitions" ;;
		*) stop "$code" "$id was not fenced" ;;
		esac
		;;
	PrepareCommit)
		note "$id is being committed, which is decided: it is never aborted"
		decided+=("$id")
		;;
	*) note "$id has no transaction open ($state): there is nothing to end" ;;
	esac
done

step "3. Owner known, and its timeout has passed: fence it"
look
while IFS= read -r -d '' id; do
	note "$id should have been aborted by its coordinator"
	try txn fence "$(consent)" --timeout "$limit" -- "$id"
	[ "$code" = 0 ] || note "it was not fenced (exit status $code)"
done < <(answered -j "$class"'[.items[] | select(class == "overdue") | .transactional_id | strings] | unique[] | . + "\u0000"')

step "4. No owner, records in TX_PENDING: write the end marker (COMMIT where it is known to be committed, ABORT otherwise)"
look
groups=()
while IFS= read -r -d '' group; do
	groups+=(--group "$group")
done < <(answered -j "$class"'[.items[] | select(class == "orphan") | .group_id | strings] | unique[] | . + "\u0000"')
if [ ${#groups[@]} -gt 0 ]; then
	try drain "${groups[@]}" --abort-hanging "$(consent)" --timeout "$limit"
	[ "$code" = 0 ] || note "not all of it is drained (exit status $code)"
fi

step "5. No owner, in a topic: write the ABORT marker"
ask txn find-hanging
case $code in
0) ;;
3) missed ;;
*) stop "$code" "hanging transactions could not be looked for" ;;
esac
while IFS=$'\t' read -r topic partition offset; do
	try txn abort --topic "$topic" --partition "$partition" --start-offset "$offset" "$(consent)" --timeout "$limit"
	[ "$code" = 0 ] || note "it was not aborted (exit status $code)"
done < <(answered '.items[] | select(.certain) | [.topic, .partition, .start_offset] | @tsv')

if ! acting; then
	look
	if [ ${#decided[@]} -gt 0 ] || has undelivered; then
		stop 6 "escalate to who runs the brokers if it lasts: an end that is decided, and never to be changed"
	fi
	[ "$incomplete" = 0 ] || stop 3 "not all could be seen: see to the above first; nothing was changed"
	note "nothing was changed: that takes --yes, and no DRY_RUN"
	exit 0
fi

step "6. Verify: what is left"
for id in ${decided[@]+"${decided[@]}"}; do
	# Markers that are on their way arrive in this time.
	try inspect pending --txn "$id" --wait --timeout "$limit"
	ask inspect txn -- "$id"
	state=$(answered '.items[0].state')
	[ "$state" != PrepareCommit ] || stop 6 "escalate to who runs the brokers: the commit of $id is decided and does not arrive; never abort it, look at its coordinator (broker $(answered '.items[0].coordinator')) and at the leaders of its partitions"
	note "$id is $state"
done
try txn find-hanging --check
hanging=$code
look
tell
if has undelivered; then
	stop 6 "escalate to who runs the brokers: an end that is decided does not arrive; never abort it, look at the coordinator and at the leaders of __share_group_state"
fi
if has orphan overdue || [ "$hanging" = 6 ]; then
	stop 6 "escalate: what is above is still stuck"
fi
[ "$incomplete" = 0 ] || stop 3 "not all could be seen: see to the above first"
note "nothing is stuck; what is open ends by itself, or when it is named to this script"
