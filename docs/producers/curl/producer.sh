#!/bin/sh
# Enqueues jobs with curl. The token comes to it on standard input, so that no
# list of processes shows it; sed takes out of the answer what is wanted.
set -eu
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

n=0
while [ "$n" -lt "${1:-1}" ]; do
  status=$(echo "Authorization: Bearer $FLEXIQ_TOKEN" |
    curl -s -o "$answer" -w '%{http_code}' -H @- -H 'Content-Type: application/json' \
      -d '{"job":{"task":"mail","args":{"to":"ada","n":'"$n"'}}}' "$FLEXIQ_SERVER/flexiq.v1.ProducerService/Enqueue")
  case $status in
  200) sed 's/.*"id":"\([^"]*\)".*"status":"\([^"]*\)".*/\2 \1/' "$answer" ;;
  429) sed 's/.*"reason": *"\([^"]*\)".*"metadata": *\({[^}]*}\).*/\1 \2/' "$answer" ;;
  *) cat "$answer" >&2; exit 1 ;;
  esac
  echo
  n=$((n + 1))
done
