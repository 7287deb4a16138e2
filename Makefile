# `make demo` and `make test` are all that a newcomer needs; each first installs what is missing.
# Everything else is a chore of its own, also to be had as `cargo xtask CHORE`.

export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
PREFIX ?= /usr/local
SECONDS_EACH ?= 60
SEEDS ?= 1000

KILLS ?= 10000
CONNECTIONS ?= 10000
RUNS ?= 200

.PHONY: help demo check test test-all docs wheel dist publish install bench fuzz loom sim

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

demo: ## run Black-Scholes on leased cores: the lease, the times, the bill
	@scripts/setup.sh build
	@scripts/demo.sh

check: ## before a commit: format, lints, unit and property tests
	@scripts/setup.sh build
	@cargo xtask check

test: ## check everything: format, lints, licences, tests with the inputs of fuzzing, sim, loom, C, C++ and Python
	@scripts/setup.sh test
	@cargo xtask test

test-all: test ## the same, and for a night: upgrades from the version before, a Python with musl, all of TPC-DS at scale 1, KILLS (10000) random kills, RUNS (200) runs with kills, CONNECTIONS (10000) hostile ones, an hour of fuzzing, SEEDS (1000) of sim
	@SUBLET_TEST_KILLS=$(KILLS) cargo test --profile checked --workspace --test control_suites random_kills:: -- --nocapture
	@SUBLET_TEST_CONNECTIONS=$(CONNECTIONS) cargo test --profile checked --workspace --test control_suites listeners:: -- --nocapture
	@SUBLET_TEST_RUNS=$(RUNS) cargo test --profile checked --workspace --test alone_suites regression:: -- --nocapture
	@SUBLET_TEST_SIM_SEEDS=200 cargo test --profile checked --workspace --test repository_suites sim:: -- --nocapture
	@SUBLET_TPCDS_SCALE=1 cargo xtask python
	@scripts/musl-python.sh
	@cargo test --profile checked --workspace --test code_suites image_pythons:: -- --ignored --nocapture
	@cargo xtask upgrade
	@cargo xtask fuzz --seconds 300
	@cargo xtask sim --seeds $(SEEDS)

docs: ## build the documentation site in target/site
	@scripts/setup.sh docs
	@cargo xtask docs

wheel: ## make the Python wheel in target/wheels: the package, its module, the command and the workers
	@scripts/setup.sh wheel
	@cargo xtask wheel

dist: ## make all packages for x86-64 in target/packages: wheels, archives, Debian's packages, image, chart
	@scripts/setup.sh dist
	@cargo xtask dist

publish: ## make and check all packages of both architectures; prints the commands that upload, and uploads nothing
	@scripts/publish.sh

install: ## install the command, the C library and its headers under PREFIX (/usr/local)
	@scripts/setup.sh build
	@cargo xtask install --prefix "$(PREFIX)"

bench: ## measure the promises of SPECIFICATION.md on this machine, and write docs/performance.md and README.md
	@scripts/setup.sh build
	@cargo xtask bench

fuzz: ## fuzz every decoder, SECONDS_EACH (60) each
	@scripts/setup.sh test
	@cargo xtask fuzz --seconds $(SECONDS_EACH)

loom: ## model-check the rings
	@scripts/setup.sh build
	@cargo xtask loom

sim: ## simulate the control plane under faults: SEEDS (1000) runs of 1000 nodes for an hour
	@scripts/setup.sh build
	@cargo xtask sim --seeds $(SEEDS)
