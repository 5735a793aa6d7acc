# Each target works in a clean clone: scripts/setup installs what is missing, and is silent when nothing is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# rustup puts cargo here, and into PATH only at the next login.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# For the program that a target runs: make up ARGS="--replicas 3", make bench ARGS="--only select"
ARGS ?=
# How long each parser is fuzzed, in seconds.
FUZZ_SECONDS ?= 60
KINGPOST := target/release/kingpost
# What `make up` runs: built in a fraction of the time, and slower. Without ARGS a new cluster shows the loss of its primary.
UP := target/up/kingpost
UP_ARGS = $(or $(ARGS),$(if $(wildcard $(or $(KINGPOST_DIR),.kingpost)),,--tour=loss))
# What tests run: built with the features of the whole workspace, as by `make test`, since another set compiles half of it once more.
BUILD_TO_TEST := cargo build --locked --workspace --bins

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the binary: target/release/kingpost, and kingpost-pam and kingpost-gss beside it
	@scripts/setup build
	cargo build --locked --release -p kingpost -p kingpost-pam -p kingpost-gss

.PHONY: up
up: ## Start a local cluster behind one address; a new one loses its primary first, and gets it back. Ctrl-C stops it
	@scripts/setup up
	@scripts/build-quickly
	@exec $(UP) up $(UP_ARGS)

.PHONY: down
down: ## Stop the local cluster, also one that was left behind
	@$(firstword $(wildcard $(UP) $(KINGPOST)) $(UP)) down $(ARGS)

.PHONY: test
test: ## Every kind of test, as CI runs them
	@scripts/test

.PHONY: test-long
test-long: ## What takes long: random runs, larger models, torture, every client; nightly and before a release (hours; SEED=7 repeats one)
	@scripts/test-long $(if $(SEED),--seed $(SEED))

TORTURE_FAILOVERS ?= 100

.PHONY: torture
torture: ## Kill, cut and switch over everything, TORTURE_FAILOVERS times, and check what clients were told (long)
	@scripts/setup test
	$(BUILD_TO_TEST)
	KINGPOST_BIN=$(CURDIR)/target/debug/kingpost KINGPOST_TORTURE_FAILOVERS=$(TORTURE_FAILOVERS) KINGPOST_TEST_WAL_SEGMENT_MB=1 \
		cargo test --locked --workspace --test e2e -- --include-ignored --nocapture torture

.PHONY: bench
bench: ## Measure side by side with the peers (long)
	@scripts/setup bench
	cargo build --locked --release -p kingpost
	bench/run $(ARGS)

.PHONY: bench-registry
bench-registry: ## Measure the registry: stores, metadata, heartbeats, discovery; beside etcd
	@scripts/setup bench
	cargo build --locked --release -p kingpost
	cargo build --locked --release -p registry --examples
	bench/registry $(ARGS)

.PHONY: bench-quick
bench-quick: ## The same in under two minutes
	@scripts/setup bench
	cargo build --locked --release -p kingpost
	bench/run --quick $(ARGS)

.PHONY: clients
clients: ## Every client in every language, also Go, Java and Rust (those in Python and Node are in make test too); TiKV
	@scripts/setup test
	@tests/clients/setup --all
	$(BUILD_TO_TEST)
	@tests/tikv/setup > /dev/null || test $$? = 3
	@if command -v go > /dev/null; then tests/clients/setup --s3 && tests/clients/setup --google; fi
	@tests/clients/setup --azure
	KINGPOST_TESTS_TIKV=1 KINGPOST_BIN=$(CURDIR)/target/debug/kingpost \
		cargo test --locked --workspace --test e2e -- --include-ignored clients archive_in_
	KINGPOST_TESTS_TIKV=1 cargo test --locked -p tikv --test rig
	KINGPOST_TESTS_TIKV=1 cargo test --locked -p registry --test it -- tikv::

# How many reads all drivers together make.
READS ?= 1000000

.PHONY: tenants
tenants: ## Tenants behind row-level security with drivers in Python, Node, Go and Java: READS reads, no row of another tenant (minutes)
	@scripts/setup test
	@tests/clients/setup --all
	$(BUILD_TO_TEST)
	KINGPOST_TENANTS_READS=$(READS) KINGPOST_BIN=$(CURDIR)/target/debug/kingpost \
		cargo test --locked --workspace --test e2e -- --include-ignored --nocapture --test-threads 1 tenants::

.PHONY: conformance
conformance: ## PostgreSQL's regression tests and psycopg's own through Kingpost, beside a direct connection (minutes)
	@scripts/setup test
	cargo build --locked --release -p kingpost
	tests/conformance/run $(ARGS)

.PHONY: suites
suites: ## Drivers' own test suites through Kingpost, beside a direct connection: ARGS="pgx" for one (minutes; Go, the network)
	@scripts/setup test
	$(BUILD_TO_TEST)
	tests/suites/run $(ARGS)

.PHONY: peers
peers: ## The registry beside its peers' own servers: the same random requests, compared field by field: SEED=7, ARGS="consul --sequences 9" (minutes; Go, Maven, the network)
	@scripts/setup test
	$(BUILD_TO_TEST)
	tests/peers/run $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: console-test
console-test: ## The web console in a headless Chromium, with screenshots in target/console
	@scripts/setup browser
	$(BUILD_TO_TEST)
	@mkdir -p target/console
	KINGPOST_TESTS_BROWSER=1 PICTURES=$(CURDIR)/target/console KINGPOST_BIN=$(CURDIR)/target/debug/kingpost \
		cargo test --locked --workspace --test e2e -- web::

# How long random sessions are compared, in seconds, all configurations together; and further flags: SEED=7, ARGS="--without errors".
SECONDS ?= 600
SEED ?=

.PHONY: differential
differential: ## Random sessions of several clients through Kingpost and directly, compared message by message, for SECONDS
	@scripts/setup test
	$(BUILD_TO_TEST)
	KINGPOST_BIN=$(CURDIR)/target/debug/kingpost target/debug/differential replay tests/differential/sessions/*.session
	KINGPOST_BIN=$(CURDIR)/target/debug/kingpost target/debug/differential --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: fuzz
fuzz: ## Fuzz each parser for FUZZ_SECONDS (says what to install if cargo-fuzz or a nightly toolchain is missing)
	@scripts/setup build
	@fuzz/run $(FUZZ_SECONDS)

.PHONY: dist
dist: ## What is installed, in dist/: tarball, .deb, bill of materials, SHA-256 sums
	@scripts/setup build
	@scripts/dist $(ARGS)

.PHONY: try-dist
try-dist: ## Install what make dist made on a fresh Debian, use it, remove it (needs root, mmdebstrap and the network)
	@scripts/try-dist $(ARGS)

.PHONY: image
image: ## An OCI image, in dist/: an archive for docker load, podman load, skopeo
	@scripts/setup build
	@scripts/image $(ARGS)

.PHONY: try-image
try-image: ## Run what make image made: read-only root, a primary and a replica, SIGTERM (needs root, runc, skopeo, umoci)
	@scripts/setup up
	@scripts/try-image $(ARGS)

.PHONY: charts
charts: ## The Helm chart: lint, render, Kubernetes' schemas, kingpost check of each configuration (builds helm with Go where it is missing)
	@scripts/setup build
	cargo build --locked -p kingpost
	@scripts/charts $(ARGS)

.PHONY: workflows
workflows: ## Look over .github/workflows with actionlint (built with Go where it is missing)
	@command -v actionlint > /dev/null || test -x target/tools/actionlint || \
		GOBIN=$(CURDIR)/target/tools go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
	@PATH=$$PATH:$(CURDIR)/target/tools actionlint

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: docs
docs: ## The crates' documentation, in target/doc
	cargo doc --locked --workspace --no-deps --document-private-items

.PHONY: docs-site
docs-site: ## The guide, figures and decisions as a site with a search, in target/docs-site/html (fetches mdBook once)
	@scripts/docs-site

.PHONY: advisories
advisories: ## Known vulnerabilities in dependencies (needs the network; not part of make test)
	@scripts/cargo-deny check advisories

.PHONY: clean
clean: ## Remove everything that was built or installed here; not a cluster's data
	rm -rf target bench/out bench/.venv tests/clients/.venv tests/clients/node/node_modules
