# `make` alone lists the verbs. Everything needs Go only, and `test`, `race` and
# `fuzz` what their tests start.

GO       ?= go
FUZZTIME ?= 10s
TIMEOUT  ?= 20m
PKG      ?= ./...
ARGS     ?=
RUN      ?= .
SOAKTIME ?= 90m

# The race detector also checks each pointer conversion, which makes SQLite,
# translated from C, three times slower and finds nothing of ours there.
UNCHECKED = -gcflags='modernc.org/sqlite/lib=-d=checkptr=0' -gcflags='modernc.org/libc/...=-d=checkptr=0'

# Tools have a module of their own, so that they stay out of the product's go.mod.
STATICCHECK = $(GO) tool -modfile=tools/go.mod staticcheck
GENAPI      = $(GO) -C tools run ./genapi

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build static binaries into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: test
test: needs-cc needs-servers ## Run all tests with the race detector (PKG=./pkg/job/... for some of them)
	@mkdir -p bin
	CGO_ENABLED=1 FLEXIQ_TEST_NOT_TRIED=$(CURDIR)/bin/not-tried $(GO) test -race $(UNCHECKED) -timeout=$(TIMEOUT) $(PKG)
	$(GO) -C tools test ./...
	$(GO) -C bench test ./...
	@if [ -s bin/not-tried ]; then cat bin/not-tried; fi

.PHONY: race
race: test ## The same as test

.PHONY: test-clients
test-clients: ## Let producers in every language flood one namespace (python3, node and npm, java, curl)
	FLEXIQ_TEST_CLIENTS=all $(GO) test -count=1 -v -timeout=$(TIMEOUT) -run='^(TestClientsFloodOneNamespace|TestProducersPageShowsWhatRuns)$$' ./cmd/flexiqd

.PHONY: needs-servers
needs-servers:
	@tools/test-servers

# The race detector is linked with a C compiler; without one Go says only that
# cgo is missing.
.PHONY: needs-cc
needs-cc:
	@cc="$$($(GO) env CC)"; command -v "$${cc%% *}" >/dev/null || { \
	  echo "make test needs a C compiler for Go's race detector, and there is no '$$cc' here:" >&2; \
	  echo "install gcc or clang (Debian: apt-get install gcc libc6-dev), or name one with CC=..." >&2; \
	  exit 1; }

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s) each
	@targets="$$(grep -roE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' --exclude-dir=bench --exclude-dir=tools . | sort)"; \
	test -n "$$targets" || { echo "no fuzz target found" >&2; exit 1; }; \
	echo "$$targets" | while IFS=: read -r file name; do \
	  echo "== $$(dirname "$$file") $${name#func }"; \
	  $(GO) test -run='^$$' -fuzz="^$${name#func }\$$" -fuzztime=$(FUZZTIME) "$$(dirname "$$file")" </dev/null || exit 1; \
	done

# Each soak is a test binary's run of its own: they measure, and one that hangs
# or breaks the machine's peace must not spoil the next.
.PHONY: soak
soak: needs-servers ## Run the long tests one by one (RUN=NAME for some), which write bench/results/soak
	@tests="$$(grep -roE '^func TestSoak[A-Za-z0-9_]+' --include='*_soak_test.go' . | sort | grep -E -- '$(RUN)')"; \
	test -n "$$tests" || { echo "no soak is named like '$(RUN)'" >&2; exit 1; }; \
	echo "$$tests" | { failed=; while IFS=: read -r file name; do \
	  echo "== $$(dirname "$$file") $${name#func }"; \
	  $(GO) test -tags soak -count=1 -v -timeout=$(SOAKTIME) -run="^$${name#func }\$$" "$$(dirname "$$file")" </dev/null || failed="$$failed $${name#func }"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }; }

.PHONY: lint
lint: ## Check format, go vet, staticcheck
	@badly="$$(gofmt -l .)"; test -z "$$badly" || { echo "gofmt would change:" >&2; echo "$$badly" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags soak ./...
	$(GO) -C tools vet ./...
	$(GO) -C bench vet ./...
	$(GO) -C docs/producers vet ./...
	$(STATICCHECK) -tags soak ./...

.PHONY: gen
gen: ## Generate the Go code of pkg/api from its protobuf sources
	$(GENAPI) ../pkg/api

.PHONY: gen-check
gen-check: ## Fail when generated code is not what its sources give
	$(GENAPI) -check ../pkg/api

.PHONY: up
up: ## Run flexiqd from source, all in one process (ARGS=... for its flags)
	$(GO) run ./cmd/flexiqd $(ARGS)

# The benchmarks of the packages, each once, so that they keep on working.
.PHONY: bench-once
bench-once: needs-servers ## Run every Go benchmark once, to see that it works
	$(GO) test -run='^$$' -bench=. -benchtime=1x -timeout=$(TIMEOUT) $(PKG)

ROWS ?=

.PHONY: bench
bench: needs-servers ## Measure beside the peers, up to 40 minutes (ROWS=B1,B4 for some rows)
	$(GO) -C bench run . -rows '$(ROWS)' -out results $(ARGS)

.PHONY: bench-quick
bench-quick: needs-servers ## Measure the rows that show most in under three minutes, roughly
	$(GO) -C bench run . -quick -rows '$(ROWS)' $(ARGS)
