# Everything here needs Go, and modules; "make help" lists the targets.
# CI runs .ci/run, which is "make check" and a little more.

TOOL       := go tool -modfile=tools/go.mod
GORELEASER := go run github.com/goreleaser/goreleaser/v2@v2.13.0
FUZZTIME   ?= 30s
SOAK       ?= 100000
SEED       ?= 1

.DEFAULT_GOAL := help
.PHONY: help build test race soak script test-kafka golden pictures fuzz bench lint fmt vuln docs check snapshot packages

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/kshare
	go build -trimpath -o bin/kshare ./cmd/kshare

test: ## Run all tests
	go test ./...

race: ## Run all tests under the race detector
	go test -race -timeout 40m ./...

soak: ## Drain under random faults, SOAK times from SEED on
	go test ./drain -run Soak -soak $(SOAK) -seed $(SEED) -timeout 0 -v

script: ## Run the end-to-end scripts alone
	go test ./cmd/kshare -run TestScript

# Tests on real Kafka have it in their name. CI=true fails what else would be
# skipped; one package at a time, since each has brokers of its own.
test-kafka: ## Run the tests on a real Apache Kafka alone (needs a JDK and Maven)
	CI=true go test -p 1 ./internal/kafkatest
	CI=true go test -p 1 -run Kafka $$(go list ./... | grep -v /internal/kafkatest)

golden: ## Write the golden files anew; read the diff before you commit it
	go test ./output ./commands -update
	go test ./docs -update
	go test ./cmd/kshare -run TestTerminal -update
	go test ./cmd/kshare -run TestDocs -update-pages

pictures: ## Draw the pictures of the documentation anew, where what they show has changed
	go test ./cmd/kshare -run TestPictures -update

fuzz: ## Fuzz every target for FUZZTIME each
	.ci/fuzz $(FUZZTIME)

bench: ## Compare ctp with a plain consumer-group loop, and measure the sandbox; see bench/README.md
	go run ./bench
	go test -run '^$$' -bench 'StageResolve|ShareTransactions' -benchmem -benchtime 3x ./sandbox
	go test -run '^$$' -bench FeatureDescribe -benchtime 20x ./cmd/kshare
	go test -run '^$$' -bench Alternating ./share

lint: ## Run the linters and check the format
	$(TOOL) golangci-lint run ./...

fmt: ## Format all code
	$(TOOL) golangci-lint fmt ./...

vuln: ## Look for known vulnerabilities (asks a database on the network)
	$(TOOL) govulncheck ./...

docs: ## Write manual pages, Markdown, completions, JSON schemas and the example data anew
	go run ./docs/gen
	go run ./examples/gen > examples/orders.ndjson

check: lint test race ## What has to pass before a commit
	$(MAKE) docs
	git diff --exit-code -- docs completions examples

snapshot: ## Build a release into dist/ without publishing it
	$(GORELEASER) release --snapshot --clean --skip=docker,sign

packages: ## Build a release of HEAD twice, compare, and try all of it out (needs root, and the tools of .ci/run)
	.ci/packages
