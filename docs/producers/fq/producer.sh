#!/bin/sh
# Enqueues one job for each line, each a call of its own; the line is its input.
set -eu
seq "${1:-1}" | fq enqueue mail --lines - --output json
