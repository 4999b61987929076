# Tallygate: make help lists the targets.
SHELL := /bin/bash
TOOL := go tool -modfile=tools/go.mod

# For bench and fuzz, for example: make bench BENCH=Decide PKG=./internal/counters COUNT=10
PKG ?= ./...
BENCH ?= .
COUNT ?= 1
TIME ?= 1s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: dev
dev: ## run the whole pipeline in one process, with load
	go run ./cmd/tallygate dev --load

.PHONY: build
build: ## build the binaries into bin/
	go build -o bin/ ./cmd/...

.PHONY: test
# Pointer checks are off in SQLite's machine-translated C alone: they make it ten
# times slower and find nothing of ours.
test: servers ## run every test with the race detector
	go test -race -gcflags='modernc.org/...=-d=checkptr=0' -timeout 20m ./...

.PHONY: servers
servers: ## find or install the servers that tests start (redis-server, Postgres)
	@./.ci/servers

.PHONY: nested
nested: ## vet and test the modules of their own: deploy/check (Helm, Compose) and e2e (containers)
	cd deploy/check && go vet ./... && go test ./...
	cd e2e && go vet ./... && go test ./...

.PHONY: lint
lint: ## go vet, staticcheck and gofumpt
	go vet ./...
	$(TOOL) staticcheck ./...
	@bad=$$($(TOOL) gofumpt -l .); [ -z "$$bad" ] || { echo "not gofumpt'ed (run make fmt):"; echo "$$bad"; exit 1; }

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w .

.PHONY: docs
docs: ## make the generated documents again
	go test ./internal/docstest -update

.PHONY: cover
cover: servers ## show the test coverage per package, across packages
	go test -coverpkg=./... -coverprofile=cover.out ./...
	go tool cover -func=cover.out | tail -1

.PHONY: bench
bench: ## run benchmarks: PKG=./internal/counters BENCH=Decide COUNT=10 TIME=1s
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(TIME) -count $(COUNT) -benchmem $(PKG)

.PHONY: fuzz
fuzz: ## run every fuzz target for a short time: PKG=./internal/token TIME=10s
	@set -e; for pkg in $$(go list $(PKG)); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(TIME) $$pkg; \
	  done; \
	done
