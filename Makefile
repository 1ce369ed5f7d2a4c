# Millpond. `make help` lists the targets; README.md explains them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PREFIX ?= $(HOME)/.local
CARGO ?= cargo
FUZZ_SECONDS ?= 60
KILLS ?= 200
MINUTES ?= 5
OBJECTS ?= 1000000
SEEDS ?= 1000
# Tests mostly wait for leases and restarts: run one more at a time than there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$(($$(nproc) + 1)))
# Most disk space of `make test` in GB, with vLLM and the data of tests.
TEST_GB ?= 30
FROM ?= 0
BENCH_DIR ?= .bench
S3 ?= seaweedfs

.PHONY: help demo test room tools check test-rust test-python test-s3 first-hour test-vllm test-vllm-serve test-s3-clients test-xfstests bench install dist fuzz kill9 s3-kill9 s3-backlog s3-memory chaos mount-soak sim specs docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## serve documents with a real vLLM, with and without Millpond; QUICK=1 for short texts, KEEP=1 keeps the store
	@bash demo/run.sh

test: room check test-rust test-python test-s3 first-hour test-vllm ## set up all dependencies and run every test; NO_VLLM=1 skips vLLM and the demo
	@echo "make test: every suite passed$${NO_VLLM:+ (NO_VLLM=1: the vLLM suite and the demo were skipped)}"

room:
	@df --output=avail,target -BG . "$${TMPDIR:-/tmp}" | awk 'NR > 1 && !seen[$$2]++ && $$1 + 0 < $(TEST_GB) { \
	  printf "make test: warning: %d GB are free at %s, and a first run takes up to $(TEST_GB) GB: tests may fail. Free some space, or set TMPDIR and CARGO_TARGET_DIR\n", $$1, $$2 }'

tools: ## protoc, for the build of the etcd client; installed with apt if permitted
	@bash crates/store/protoc.sh

check: tools ## formatting, lints, dependency direction
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy

test-rust: tools ## unit, property, crash and multi-process tests of the Rust crates
ifdef NO_ETCD
	@echo "NO_ETCD=1: the tests of the store on etcd are skipped"
else
	bash crates/store/tests/etcd/build.sh
endif
ifdef NO_FUSE
	@echo "NO_FUSE=1: the tests on real mounts are skipped"
	$(CARGO) test --workspace --locked --exclude millpond-fuse-wire
	$(CARGO) test --locked -p millpond-fuse-wire --lib
else
	bash crates/cli/tests/tools/install.sh
	$(CARGO) test --workspace --locked
endif

test-python: ## build and install the wheel, then ruff, mypy and pytest
	bash python/tests/run.sh

test-vllm: ## the connector inside a real vLLM, then the quick demo
ifdef NO_VLLM
	@echo "NO_VLLM=1: the vLLM suite and the demo are skipped"
else
	wheel=$$(bash python/tests/wheel.sh); export MILLPOND_WHEEL=$$wheel; bash python/tests/vllm/run.sh; QUICK=1 bash demo/run.sh
endif

test-vllm-serve: ## test the command of docs/vllm.md that serves a model, over HTTP; takes minutes, not part of `make test`
	wheel=$$(bash python/tests/wheel.sh); MILLPOND_WHEEL=$$wheel VLLM_SERVE=1 bash python/tests/vllm/run.sh -k test_serve

# The build is the same as in `test-rust`, with the features of the whole workspace: a separate build of the program
# would compile all dependencies a second time.
test-s3: tools ## real S3 clients on buckets with a SeaweedFS backend, in all three modes; rclone needs Go, NO_RCLONE=1 skips it
	$(CARGO) test --workspace --locked --no-run
	command -v go >/dev/null || export NO_RCLONE=1; for mode in write-back write-through transient; do \
	  BACKED=$$mode bash python/tests/s3/run.sh millpond $${CARGO_TARGET_DIR:-target}/debug/millpond -q; \
	done

# Uses the builds of other tests: the program of `test-s3`, the package of `test-python`, aws of the S3 clients.
first-hour: tools ## run the commands of README.md as a new user does, in an empty folder; after test-python
	@test -x .venv/bin/millpond || { echo "make first-hour: the package is not in .venv; run make test-python first"; exit 1; }
	$(CARGO) test --workspace --locked --no-run
	bash python/tests/s3/environment.sh
	PATH="$$(realpath $${CARGO_TARGET_DIR:-target})/debug:$$PWD/.venv/bin:$$PWD/.venv-s3/bin:$$PATH" bash docs/first-hour.sh

test-s3-clients: ## real S3 clients against a server: S3=seaweedfs (to prove the tests), millpond or http://HOST:PORT
ifeq ($(S3),millpond)
	$(CARGO) build --locked -p millpond-cli --bin millpond
	bash python/tests/s3/run.sh millpond $${CARGO_TARGET_DIR:-target}/debug/millpond
else
	bash python/tests/s3/run.sh $(S3)
endif

test-xfstests: ## the generic quick group of xfstests on mounts; XFSTESTS=/path is a built copy of it, docs/xfstests.md
ifndef XFSTESTS
	@echo "make test-xfstests: set XFSTESTS=/path to a built copy of xfstests (see docs/xfstests.md)"; exit 1
endif
ifndef MILLPOND
	$(CARGO) build --locked -p millpond-cli --bin millpond
endif
	bash crates/cli/tests/xfstests/run.sh $(XFSTESTS) $${MILLPOND:-$${CARGO_TARGET_DIR:-target}/debug/millpond}

bench: ## engine against fio, KV against Redis, Mooncake and a socket echo; writes .bench/, or BENCH_DIR=…
	bash bench/run.sh $(BENCH_DIR)

fuzz: ## fuzz every decoder for FUZZ_SECONDS (60); needs a nightly toolchain
	bash fuzz/run.sh $(FUZZ_SECONDS)

kill9: ## KILLS (200) rounds of kill -9 under load; every acknowledged value is checked
	MILLPOND_KILLS=$(KILLS) $(CARGO) test --release --locked -p millpond-cli --test kill9 -- --nocapture

s3-kill9: tools ## MINUTES (5) of kill -9 of gateways, managers and nodes under S3 load; no acknowledged write is lost
	MILLPOND_S3_KILL_MINUTES=$(MINUTES) $(CARGO) test --release --locked -p millpond-cli --test s3_oracle -- --nocapture killed_processes

s3-backlog: tools ## time until a server answers after a kill, with OBJECTS (1000000) waiting for a backend
	MILLPOND_S3_BACKLOG=$(OBJECTS) $(CARGO) test --release --locked -p millpond-cli --test s3_oracle -- --nocapture a_backlog

s3-memory: tools ## a PUT of 5 GiB and 64 GETs of 64 MiB through a gateway, in less than 512 MiB; needs 9 GB of disk
	MILLPOND_S3_LARGE_MIB=5120 MILLPOND_S3_READERS=64 $(CARGO) test --release --locked -p millpond-cli --test s3_oracle -- --nocapture large_objects

chaos: tools ## MINUTES (5) of faults on clusters of real processes under load; docs/dev.md
	MILLPOND_CHAOS_MINUTES=$(MINUTES) $(CARGO) test --release --locked -p millpond-cli --test chaos -- --nocapture faults_lose_nothing

mount-soak: tools ## MINUTES (5) of mapped files on mounts while daemon and servers die, in the end permanently; docs/dev.md
	bash crates/cli/tests/tools/install.sh
	MILLPOND_SOAK_SECONDS=$$((60 * $(MINUTES))) $(CARGO) test --workspace --locked --test cluster -- --nocapture mount::soak

sim: ## SEEDS (1000) simulated clusters from seed FROM (0), until the first failure; SEED=0x5eed replays one
	$(CARGO) run --release --locked -q -p millpond-sim -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM))

specs: ## check the model of chains in specs/ with TLC (needs java and maven); SPECS_QUICK=1 for two replicas only
	bash specs/run.sh

docs: ## build a site of all documents into target/site, with mdBook; prints the path of its first page
	@CARGO="$(CARGO)" bash docs/site/build.sh

install: tools ## build the release binary and its manual pages into PREFIX (~/.local)
	$(CARGO) build --release --locked -p millpond-cli --bin millpond
	install -Dm755 $${CARGO_TARGET_DIR:-target}/release/millpond $(DESTDIR)$(PREFIX)/bin/millpond
	$(DESTDIR)$(PREFIX)/bin/millpond man --out $(DESTDIR)$(PREFIX)/share/man/man1
	@echo "installed $(DESTDIR)$(PREFIX)/bin/millpond; 'millpond completion bash' prints shell completion"

dist: tools ## build the packages for PyPI into dist/: an sdist and a manylinux wheel from it; publishes nothing
	bash python/dist.sh

clean: ## remove build products, environments and demo data
	rm -rf target dist .venv .venv-dist .venv-vllm .demo $(BENCH_DIR)
