# Everything a person or a CI runs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build install uninstall dist package-test systemd-test docs demo deps test unit model conformance-quick conformance reliability laboratory compare-by-hand old-kernel lint bench book

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary and the preload library
	cargo build --release --locked -p strandfs -p strandfs-preload

install: ## Install what `make build` built (PREFIX, DESTDIR, SBINDIR)
	@scripts/install.sh

uninstall: ## Take it away again
	@scripts/install.sh --uninstall

dist: ## Build what a release hands out: static programs, .deb, .rpm, checksums, SBOM
	@scripts/dist.sh

systemd-test: ## Boot systems whose systemd mounts pools: the unit and lines of fstab (as root)
	@scripts/systemd-test.sh

package-test: ## Install, upgrade, remove and purge the packages of `make dist` in clean roots (as root)
	@scripts/package-test.sh

docs: ## Write the options page, manual pages and completions from the option table
	cargo run --quiet -p strandfs -- docs .

book: ## Build the book into target/book (installs mdbook)
	scripts/book.sh

demo: ## Build, make a pool of three branches, copy a real tree, verify, measure, unmount
	@scripts/install-test-deps.sh
	@scripts/demo.sh

test: deps unit conformance-quick ## Install what the tests need and run them all

deps:
	@scripts/install-test-deps.sh --tests

unit:
	scripts/unit-tests.sh

conformance-quick:
	scripts/conformance.sh --quick

conformance: deps ## Third-party suites over every kind of pool, and the million-file test (long)
	scripts/conformance.sh

model: deps ## Random processes against a model of what they did (MODEL_SECONDS each theme, 600)
	scripts/model.sh $(or $(MODEL_SECONDS),600)

reliability: deps ## Run every suite and write docs/reliability.md (hours)
	scripts/reliability.sh

laboratory: deps ## Does `bench layers` name the layer that is slow, and none for noise (RUNS of each, 100: 80 minutes)
	scripts/laboratory.sh $(RUNS)

compare-by-hand: ## Does the bench measure what dd, fio, mkdir and mkfs find (as root; ten minutes, nothing else running)
	@scripts/compare-by-hand.sh

old-kernel: ## Boot another kernel in an emulator and run behaviour tests in it (KERNEL, 6.1; as root; an hour)
	scripts/old-kernel.sh $(or $(KERNEL),6.1)

lint: ## rustfmt, clippy, rustdoc, aarch64, shell syntax, licences, house rules
	scripts/lint.sh

bench: ## Passthrough speed against the bare filesystem, one interleaved run
	@scripts/install-test-deps.sh
	benches/passthrough.sh
