# Tallygate: make help lists the targets.
SHELL := /bin/bash
TOOL := go tool -modfile=tools/go.mod

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: servers
servers: ## find or install the servers that tests start (redis-server, Postgres)
	@./.ci/servers

.PHONY: test
test: servers ## run every test with the race detector
	go test -race -timeout 12m ./...

.PHONY: lint
lint: ## go vet, staticcheck and gofumpt
	go vet ./...
	$(TOOL) staticcheck ./...
	@bad=$$($(TOOL) gofumpt -l .); [ -z "$$bad" ] || { echo "not gofumpt'ed (run make fmt):"; echo "$$bad"; exit 1; }

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w .

.PHONY: build
build: ## build the binaries into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

.PHONY: dev
dev: ## run the whole pipeline in one process, with load
	go run ./cmd/tallygate dev --load
