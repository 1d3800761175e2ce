#!/bin/sh
# A client and a worker for the HTTP API of `holdfast server`: a POSIX shell, curl, and jq or python3 for JSON.
#   sh holdfast.sh enqueue TASK [ARGUMENTS [QUEUE]]      enqueue a job, wait for its end, and print its result
#   sh holdfast.sh work QUEUE TASK COMMAND [WORD…]       run COMMAND for each job of TASK in QUEUE
# COMMAND gets the arguments as JSON on its standard input. What it prints is the result, as text. If it fails, so does
# the attempt, and the last line of its errors is the reason. HOLDFAST_URL is the address of the server; HOLDFAST_TOKEN is
# a token of the role producer or worker.
set -u

url=${HOLDFAST_URL:-http://127.0.0.1:8787}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
printf 'header = "content-type: application/json"\n' > "$folder/curl"
[ -z "${HOLDFAST_TOKEN:-}" ] || printf 'header = "authorization: Bearer %s"\n' "$HOLDFAST_TOKEN" >> "$folder/curl"

fresh() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

# JSON: `text` makes a string of standard input; `get jobs 0 id` reads a part of it.
if [ "${HOLDFAST_JSON:-}" != python3 ] && command -v jq > /dev/null; then
    text() { jq -Rs .; }
    get() { jq -r 'reduce $ARGS.positional[] as $at (.; if type == "array" then .[$at | tonumber] else .[$at]? end)
        | if type == "string" then . elif . == null then "" else tojson end' --args "$@"; }
else
    text() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))'; }
    get() { python3 -c '
import json, sys
found = json.load(sys.stdin)
for at in sys.argv[1:]:
    if isinstance(found, list):
        found = found[int(at)] if int(at) < len(found) else None
    else:
        found = found.get(at) if isinstance(found, dict) else None
print(found if isinstance(found, str) else "" if found is None else json.dumps(found))' "$@"; }
fi

# call METHOD PATH [BODY]: print the answer and return 0; after a problem print its code and return 1. Every request that
# this program makes is safe to repeat, so one without an answer is sent again.
call() {
    tries=0
    while :; do
        status=$(printf '%s' "${3:-}" | curl -s -K "$folder/curl" -X "$1" ${3:+--data-binary @-} --max-time 40 \
            -o "$folder/answer.$$" -w '%{http_code}' "$url$2")
        case $status in
            2*) cat "$folder/answer.$$"; return 0 ;;
            4* | 501) get code < "$folder/answer.$$"; get detail < "$folder/answer.$$" >&2; return 1 ;;
        esac
        tries=$((tries + 1))
        [ "$tries" -lt "${TRIES:-60}" ] || { echo unreachable; return 1; }
        sleep 1
    done
}

enqueue() { # TASK ARGUMENTS QUEUE
    id=$(fresh) # our own: sent twice, it is still one job
    queue=${3:+, \"queue\": $(printf '%s' "$3" | text), \"on_crash\": \"retry\"}
    call POST /v1/jobs "{\"id\": \"$id\", \"task\": $(printf '%s' "$1" | text), \"kwargs\": ${2:-{\}}${queue:-}}" \
        > "$folder/job" || exit 1
    while :; do
        call GET "/v1/jobs/$id" > "$folder/job" || exit 1
        state=$(get state < "$folder/job")
        case $state in
            done) get result < "$folder/job"; return 0 ;;
            dead | cancelled | rolled_back) echo "job $id is $state: $(get error < "$folder/job")" >&2; exit 1 ;;
        esac
        sleep 0.2
    done
}

# Renew the lease of the job until this is killed. If it is lost, or a person cancels the job, end the command.
beat() { # PID OF THE COMMAND
    while sleep "$beat_s"; do
        [ ! -s "$folder/stopped" ] || kill "$1" 2> /dev/null # again: it may have been starting when it was asked first
        TRIES=1 call POST /v1/beat "{\"worker\": \"$worker\", \"leases\": [$lease]}" > "$folder/beat" 2> /dev/null
        if grep -q worker_gone "$folder/beat"; then reason=lost
        elif [ -n "$(get cancelled 0 < "$folder/beat" 2> /dev/null)" ]; then reason=cancelled
        elif [ -n "$(get lost 0 < "$folder/beat" 2> /dev/null)" ]; then reason=lost
        else continue; fi
        echo "$reason" > "$folder/stopped"
        kill "$1" 2> /dev/null
    done
}

settle() { # OUTCOME MORE
    while answer=$(call POST /v1/settle "{\"outcomes\": [{\"outcome\": \"$1\", \"lease\": $lease$2}]}"); do
        case $answer in *locked*) sleep 1 ;; *) break ;; esac
    done
    case $answer in *accepted* | *already*) ;; *) echo "job $id: its result was not taken: $answer" >&2 ;; esac
}

attempt() { # COMMAND [WORD…]
    [ -z "$stopping" ] || { settle released ', "started": false'; return; }
    rm -f "$folder/stopped"
    get jobs 0 arguments < "$folder/claimed" > "$folder/arguments"
    "$@" < "$folder/arguments" > "$folder/out" 2> "$folder/errors" &
    command=$!
    beat "$command" &
    beating=$!
    wait "$command"
    code=$?
    while kill -0 "$command" 2> /dev/null; do wait "$command"; code=$?; done # a signal has interrupted the wait
    # The lease is renewed until the store has the outcome.
    case $(cat "$folder/stopped" 2> /dev/null) in
        cancelled) settle cancelled "" ;;
        stopping) settle released "" ;;
        lost) echo "job $id: another attempt has it" >&2 ;;
        *)
            if [ "$code" -eq 0 ]; then settle succeeded ", \"result\": $(printf '%s' "$(cat "$folder/out")" | text)"
            else settle failed ", \"error\": $(printf 'exit %s: %s' "$code" "$(tail -n 1 "$folder/errors")" | text)"; fi ;;
    esac
    kill "$beating" 2> /dev/null
    wait "$beating" 2> /dev/null
    command=
}

work() { # QUEUE TASK COMMAND [WORD…]
    queue=$(printf '%s' "$1" | text) task=$(printf '%s' "$2" | text) worker= command= stopping=
    shift 2
    trap 'stopping=1; echo stopping > "$folder/stopped"; [ -z "$command" ] || kill "$command"' TERM INT
    while [ -z "$stopping" ]; do
        if [ -z "$worker" ]; then
            worker=$(fresh) # every start needs a new one; the name stays
            call POST /v1/workers "{\"id\": \"$worker\", \"name\": \"$(uname -n)-sh\", \"queues\": [$queue],
                \"tasks\": [$task], \"beat_s\": 5, \"pid\": $$}" > /dev/null || exit 1
        fi
        claim_id=$(fresh) # a repeated claim with it gives the same job
        if ! call POST /v1/claim "{\"worker\": \"$worker\", \"claim_id\": \"$claim_id\", \"queues\": [$queue],
                \"tasks\": [$task], \"limit\": 1, \"wait_s\": ${WAIT_S:-5}}" > "$folder/claimed"; then
            grep -q worker_gone "$folder/claimed" || exit 1
            worker=
            continue
        fi
        id=$(get jobs 0 id < "$folder/claimed")
        [ -n "$id" ] || continue
        lease="{\"id\": \"$id\", \"fence\": $(get jobs 0 fence < "$folder/claimed"), \"claim_id\": \"$claim_id\"}"
        beat_s=$(get jobs 0 beat_s < "$folder/claimed")
        attempt "$@"
    done
    [ -z "$worker" ] || call DELETE "/v1/workers/$worker" > /dev/null # gives back what it still has
}

case ${1:-} in
    enqueue) [ $# -ge 2 ] || exit 2; shift; enqueue "$@" ;;
    work) [ $# -ge 4 ] || exit 2; shift; work "$@" ;;
    *) sed -n '3,4s/^# *//p' "$0" >&2; exit 2 ;;
esac
