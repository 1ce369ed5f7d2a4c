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
# Tests wait for leases and restarts more than they work: one more at a time than there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$(($$(nproc) + 1)))
# What `make test` takes of a disk at most, with vLLM and the data of tests.
TEST_GB ?= 30
FROM ?= 0
BENCH_DIR ?= .bench
S3 ?= seaweedfs

.PHONY: help demo test room tools check test-rust test-python test-s3 first-hour test-vllm test-vllm-serve test-s3-clients test-xfstests bench install dist fuzz kill9 s3-kill9 s3-backlog s3-memory chaos mount-soak sim specs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## serve documents with a real vLLM, with and without Millpond; QUICK=1 for short texts, KEEP=1 leaves the store
	@bash demo/run.sh

test: room check test-rust test-python test-s3 first-hour test-vllm ## set up all that is needed and run every test; NO_VLLM=1 leaves the engine out
	@echo "make test: every suite passed$${NO_VLLM:+ (NO_VLLM=1: the vLLM suite and the demo were left out)}"

room:
	@df --output=avail,target -BG . "$${TMPDIR:-/tmp}" | awk 'NR > 1 && !seen[$$2]++ && $$1 + 0 < $(TEST_GB) { \
	  printf "make test: warning: %d GB are free below %s, and a first run takes up to $(TEST_GB): tests may fail. Free some, or set TMPDIR and CARGO_TARGET_DIR\n", $$1, $$2 }'

tools: ## protoc, which the build of the etcd client needs; installed with apt when it may
	@bash crates/store/protoc.sh

check: tools ## formatting, lints, dependency direction
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy

test-rust: tools ## unit, property, crash and multi-process tests of the Rust crates
ifdef NO_ETCD
	@echo "NO_ETCD=1: the tests of the store on etcd are left out"
else
	bash crates/store/tests/etcd/build.sh
endif
ifdef NO_FUSE
	@echo "NO_FUSE=1: the tests on real mounts are left out"
	$(CARGO) test --workspace --locked --exclude millpond-fuse-wire
	$(CARGO) test --locked -p millpond-fuse-wire --lib
else
	bash crates/node/tests/tools/install.sh
	$(CARGO) test --workspace --locked
endif

test-python: ## build and install the wheel, then ruff, mypy and pytest
	bash python/tests/run.sh

test-vllm: ## the connector inside a real vLLM, then the quick demo
ifdef NO_VLLM
	@echo "NO_VLLM=1: the vLLM suite and the demo are left out"
else
	wheel=$$(bash python/tests/wheel.sh); export MILLPOND_WHEEL=$$wheel; bash python/tests/vllm/run.sh; QUICK=1 bash demo/run.sh
endif

test-vllm-serve: ## the command of docs/vllm.md that serves a model, asked over HTTP; minutes, in no other target
	wheel=$$(bash python/tests/wheel.sh); MILLPOND_WHEEL=$$wheel VLLM_SERVE=1 bash python/tests/vllm/run.sh -k test_serve

# The program as `test-rust` builds it, whose dependencies have the features of the whole workspace: built alone it would take
# as long again.
test-s3: tools ## real S3 clients on buckets with SeaweedFS behind them, in all three modes; rclone needs Go, NO_RCLONE=1 leaves it out
	$(CARGO) test --workspace --locked --no-run
	command -v go >/dev/null || export NO_RCLONE=1; for mode in write-back write-through transient; do \
	  BACKED=$$mode bash python/tests/s3/run.sh millpond $${CARGO_TARGET_DIR:-target}/debug/millpond -q; \
	done

# With what the tests built: the program of `test-s3`, the package of `test-python` and aws of the S3 clients.
first-hour: tools ## go through README.md as somebody new does, in an empty folder; after test-python
	@test -x .venv/bin/millpond || { echo "make first-hour: the package is not in .venv; run make test-python first"; exit 1; }
	$(CARGO) test --workspace --locked --no-run
	bash python/tests/s3/environment.sh
	PATH="$$(realpath $${CARGO_TARGET_DIR:-target})/debug:$$PWD/.venv/bin:$$PWD/.venv-s3/bin:$$PATH" bash docs/first-hour.sh

test-s3-clients: ## real S3 clients against a server: S3=seaweedfs (to prove the tests), millpond or http://HOST:PORT
ifeq ($(S3),millpond)
	$(CARGO) build --locked -p millpond-node --bin millpond
	bash python/tests/s3/run.sh millpond $${CARGO_TARGET_DIR:-target}/debug/millpond
else
	bash python/tests/s3/run.sh $(S3)
endif

test-xfstests: ## xfstests' generic quick group on mounts; XFSTESTS=/path is a built copy of it, docs/xfstests.md
ifndef XFSTESTS
	@echo "make test-xfstests: XFSTESTS=/path names a copy of xfstests that was built; docs/xfstests.md says how"; exit 1
endif
ifndef MILLPOND
	$(CARGO) build --locked -p millpond-node --bin millpond
endif
	bash crates/node/tests/xfstests/run.sh $(XFSTESTS) $${MILLPOND:-$${CARGO_TARGET_DIR:-target}/debug/millpond}

bench: ## engine against fio, KV against Redis, Mooncake and a socket echo; writes .bench/, or BENCH_DIR=…
	bash bench/run.sh $(BENCH_DIR)

fuzz: ## every decoder for FUZZ_SECONDS (60) each; needs a nightly toolchain
	bash fuzz/run.sh $(FUZZ_SECONDS)

kill9: ## KILLS (200) rounds of kill -9 under load; every acknowledged value is checked
	MILLPOND_KILLS=$(KILLS) $(CARGO) test --release --locked -p millpond-node --test kill9 -- --nocapture

s3-kill9: tools ## MINUTES (5) of kill -9 of gateways, managers and nodes under S3 load; nothing acknowledged is lost
	MILLPOND_S3_KILL_MINUTES=$(MINUTES) $(CARGO) test --release --locked -p millpond-node --test s3_oracle -- --nocapture killed_processes

s3-backlog: tools ## OBJECTS (1000000) that wait for a backend, a kill, and the time until the server answers again
	MILLPOND_S3_BACKLOG=$(OBJECTS) $(CARGO) test --release --locked -p millpond-node --test s3_oracle -- --nocapture a_backlog

s3-memory: tools ## a PUT of 5 GiB and 64 GETs of 64 MiB through a gateway, in less than 512 MiB; needs 9 GB of disk
	MILLPOND_S3_LARGE_MIB=5120 MILLPOND_S3_READERS=64 $(CARGO) test --release --locked -p millpond-node --test s3_oracle -- --nocapture large_objects

chaos: tools ## MINUTES (5) of faults on clusters of real processes under load; docs/dev.md
	MILLPOND_CHAOS_MINUTES=$(MINUTES) $(CARGO) test --release --locked -p millpond-node --test chaos -- --nocapture faults_lose_nothing

mount-soak: tools ## MINUTES (5) of mapped files on mounts whose daemon and servers die, at last for good; docs/dev.md
	bash crates/node/tests/tools/install.sh
	MILLPOND_SOAK_SECONDS=$$((60 * $(MINUTES))) $(CARGO) test --workspace --locked --test cluster -- --nocapture mount::soak

sim: ## SEEDS (1000) simulated clusters from seed FROM (0), stops at the first failure; SEED=0x5eed replays one
	$(CARGO) run --release --locked -q -p millpond-sim -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM))

specs: ## check the model of chains in specs/ with TLC (needs java and maven); SPECS_QUICK=1 for two replicas only
	bash specs/run.sh

install: tools ## build the release binary and its manual pages into PREFIX (~/.local)
	$(CARGO) build --release --locked -p millpond-node --bin millpond
	install -Dm755 $${CARGO_TARGET_DIR:-target}/release/millpond $(DESTDIR)$(PREFIX)/bin/millpond
	$(DESTDIR)$(PREFIX)/bin/millpond man --out $(DESTDIR)$(PREFIX)/share/man/man1
	@echo "installed $(DESTDIR)$(PREFIX)/bin/millpond; 'millpond completion bash' prints shell completion"

dist: tools ## what can be published on PyPI, into dist/: an sdist and a manylinux wheel built from it; publishes nothing
	bash python/dist.sh

clean: ## remove build products, environments and demo data
	rm -rf target dist .venv .venv-dist .venv-vllm .demo $(BENCH_DIR)
