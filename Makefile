SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Where the environment forbids compiled files, every process that a test starts compiles 400 modules again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
FOREIGN := .foreign/go/clients .foreign/go/chart .foreign/go/versitygw .foreign/node/.complete
JAR_SETS := kafka kafka-apps kafka-3.9 kafka-2.8 kafka-0.11 spark spark-iceberg spark-delta
SITE_ENV := build/site-env
JAVA_ARCHIVE := build/java/tools.jsa
CODE := src tests tools bench examples
ARGS ?=
WORKERS ?= 3
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile
CRASH_ROUNDS ?= 50
CLUSTER_ROUNDS ?= 200
SEEDS ?= 1000
SCENARIO ?= cluster
ROUNDS ?= 20
SECONDS ?= 3600
MINUTES ?= 10
PODMAN ?= podman
PACKAGES ?= run
BUILD_ARGS ?=

# The first Python that is new enough; `make PYTHON=python3.13 run` chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; \
	done)

.PHONY: hostile audit bench-tls help run dist container container-try test setup prerequisites jars foreign lint format types imports docs site pictures unit compat compat-kafka bench crash compaction churn sim faults fuzz mutants cluster cluster-long upgrade bench-cluster bench-compaction bench-curves bench-history bench-large bench-partitions bench-profiles bench-shards bench-short bench-soak bench-spark bench-query spark-kills example lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up what a node needs and start one (ARGS="--kafka-port 9095" is passed on)
	@exec $(BIN)/chronik start $(ARGS)

test: setup lint ## set up everything, then every check and every test, WORKERS (3) files side by side
	$(BIN)/pytest $(SIDE_BY_SIDE)

setup: prerequisites $(VENV)/.dev jars foreign $(JAVA_ARCHIVE) ## set up everything that the tests need

# --- environment ------------------------------------------------------------------------------

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "chronik needs Python 3.11 or later; none was found on the PATH."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements/run.lock
	$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.run
	$(PIP) install --require-hashes -r requirements/dev.lock
	@touch $@

prerequisites: | $(BIN)/python
	@$(BIN)/python tools/check_prerequisites.py

jars: $(JAR_SETS:%=.jars/%/.complete)

.jars/%/.complete: tools/jars/pom.xml | prerequisites
	@rm -rf $(@D) && mkdir -p $(@D)
	mvn -q -B -f tools/jars/pom.xml -P$* dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@

$(JAVA_ARCHIVE): .jars/kafka/.complete tests/java_archive.py | $(VENV)/.dev
	$(BIN)/python -m tests.java_archive $@

foreign: $(FOREIGN)

# The versions stand in go.mod and go.sum, package.json and package-lock.json; sources are fetched once per machine.
.foreign/go/clients: $(wildcard tests/compat/foreign/go/*) | prerequisites
	@mkdir -p $(@D)
	cd tests/compat/foreign/go && go build -o $(CURDIR)/$@ .

.foreign/go/chart: $(wildcard tools/chart/* tools/chart/kubernetes/*) | prerequisites
	@mkdir -p $(@D)
	cd tools/chart && go build -o $(CURDIR)/$@ .

# A real S3 server (a minute and a half of one core); the binary has nothing of the machine's own in it.
.foreign/go/versitygw: $(wildcard tests/s3server/*) | prerequisites
	@mkdir -p $(@D)
	cd tests/s3server && go build -trimpath -ldflags='-s -w' -o $(CURDIR)/$@ github.com/versity/versitygw/cmd/versitygw

.foreign/node/.complete: $(wildcard tests/compat/foreign/node/*) | prerequisites
	@rm -rf $(@D) && mkdir -p $(@D) && cp tests/compat/foreign/node/* $(@D)
	cd $(@D) && npm ci --silent --no-audit --no-fund
	@touch $@

lock: $(VENV)/.dev ## resolve the dependencies anew into requirements/*.lock
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/python tools/lock.py

dist: $(VENV)/.dev ## wheel, sdist, SBOM and licence list into dist/, built twice: the hashes must agree
	$(BIN)/python tools/dist.py --check

container: dist ## the container image `chronik` by podman; PACKAGES=broker leaves search, SQL and S3 out
	$(PODMAN) build --format docker -f deploy/container/Containerfile -t chronik --build-arg PACKAGES=$(PACKAGES) $(BUILD_ARGS) .

container-try: $(VENV)/.dev ## run a node from that image: health check, records, memory limit, SIGTERM, kill -9
	PODMAN="$(PODMAN)" $(BIN)/python tools/container_try.py

# --- checks -----------------------------------------------------------------------------------

lint: format types imports docs ## every check that runs no test

format: $(VENV)/.dev
	$(BIN)/ruff check -q $(CODE)
	$(BIN)/ruff format -q --check $(CODE)
	$(BIN)/python tools/lock.py --check

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	$(BIN)/python tools/check_docs.py

site: $(SITE_ENV)/.complete $(BIN)/python ## the documentation as a site in build/site; opens without a server, loads nothing from elsewhere
	$(BIN)/python tools/site.py build/site-source
	$(SITE_ENV)/bin/zensical build --clean --strict

$(SITE_ENV)/.complete: requirements/docs.lock | $(BIN)/python
	$(BIN)/python -m venv --clear $(SITE_ENV)
	$(SITE_ENV)/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements/docs.lock
	@touch $@

pictures: setup ## pictures of every page of the console, in light, dark and on a phone, into docs/console (ARGS="--only groups")
	$(BIN)/python -m tools.screenshots $(ARGS)

# --- tests ------------------------------------------------------------------------------------

unit: $(VENV)/.dev ## the fast tests
	$(BIN)/pytest $(SIDE_BY_SIDE) tests/unit

compat: setup ## real Kafka clients and tools against a real node
	$(BIN)/pytest tests/compat

compat-kafka: setup ## the same tests against Apache Kafka itself: is a test wrong, or a node?
	$(BIN)/pytest tests/compat --broker kafka

crash: $(VENV)/.dev ## kill -9 under load, CRASH_ROUNDS times (50)
	$(BIN)/pytest tests/crash --crash-rounds=$(CRASH_ROUNDS) --timeout=7200

compaction: setup ## a million updates over 10,000 keys, with kill -9 inside compactions
	$(BIN)/pytest tests/crash/test_compaction.py --compaction-updates=1000000 --crash-rounds=20 --timeout=7200

churn: setup ## fifty consumers of six kinds join, leave and crash for two minutes
	$(BIN)/pytest tests/crash/test_group_churn.py --churn-seconds=120 -s

sim: $(VENV)/.dev ## whole nodes in a simulated world that breaks, SEEDS runs (1000) of SCENARIO (cluster)
	PYTHONHASHSEED=0 $(BIN)/python -m chronik.sim --seeds $(SEEDS) --scenario $(SCENARIO) $(ARGS)

faults: setup ## real nodes and clients under partitions, kill -9, SIGSTOP and a full disk for SECONDS (3600)
	$(BIN)/pytest tests/faults -s --fault-seconds=$(SECONDS) --timeout=0 $(ARGS)

fuzz: $(VENV)/.dev ## hostile input through every door of a node for MINUTES (10); --replay FILE sends a finding again
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

audit: $(VENV)/.dev ## known vulnerabilities of the locked dependencies, where the index's advisories can be reached
	$(BIN)/python tools/audit.py

hostile: setup ## a hostile client with 10,000 connections beside a well-behaved one
	$(BIN)/pytest tests/security/test_hostile.py -s --hostile-connections=10000

mutants: $(VENV)/.dev ## known bugs, planted one at a time: does the simulator notice each?
	$(BIN)/python tools/mutants.py $(ARGS)

bench: setup ## every cell beside Apache Kafka, hours; ARGS="--states warm --cells 'bulk*' --nodes 1" for a part, ARGS=--list
	$(BIN)/python -m bench.matrix $(ARGS)

bench-short: setup ## a few loads beside Apache Kafka in a quarter of an hour (ARGS=--quick for two minutes)
	$(BIN)/python -m bench.compare $(ARGS)

cluster: setup ## three real nodes: failover, restarts, members (part of make test)
	$(BIN)/pytest tests/cluster

cluster-long: setup ## the same in full length: CLUSTER_ROUNDS (200) kills, 30 s pauses, 100 runs
	$(BIN)/pytest tests/cluster --cluster-long --cluster-rounds=$(CLUSTER_ROUNDS) --timeout=7200 $(ARGS)

upgrade: setup ## from the release before to this one and back under load, ROUNDS times (10)
	$(BIN)/pytest tests/cluster/test_upgrade.py -s --upgrade-rounds=$(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),10) $(ARGS)

bench-partitions: setup ## what commit rounds and 10,000 idle partitions cost; fails above its bars
	$(BIN)/python -m bench.partitions $(ARGS)

bench-large: setup ## what simulated clusters of up to 100 nodes and 50,000 partitions cost (ARGS=--quick for a short form)
	$(BIN)/python -m bench.large $(ARGS)

bench-profiles: setup ## latency and rounds of each WAL profile (ARGS=--write puts them into docs/OPERATIONS.md)
	$(BIN)/python -m bench.profiles $(ARGS)

bench-shards: setup ## one shard and two by turns, with a load generator that costs little (ARGS=--write puts them into docs/PERFORMANCE.md)
	$(BIN)/python -m bench.shards $(ARGS)

bench-cluster: setup ## three nodes beside three of Apache Kafka on this machine (ARGS=--quick for a short form)
	$(BIN)/python -m bench.cluster $(ARGS)

bench-compaction: setup ## produce latency while compaction works and while it rests, in turn
	$(BIN)/python -m bench.compaction $(ARGS)

bench-history: setup ## produce latency while others read a gigabyte of history and while nobody does, in turn
	$(BIN)/python -m bench.history $(ARGS)

bench-tls: setup ## TLS beside Apache Kafka's TLS, and ACLs on beside off; fails below its aims (ARGS=--quick for a short form)
	$(BIN)/python -m bench.tls $(ARGS)

bench-curves: setup ## how cost grows with partitions, connections, consumers, members and log size, beside Apache Kafka
	$(BIN)/python -m bench.curves $(ARGS)

bench-soak: setup ## half an hour at 70 % of the peak: latency, memory and descriptors must stay flat
	$(BIN)/python -m bench.soak $(ARGS)

bench-spark: setup ## the data source beside the official Kafka connector (ARGS="--records 1000000" for a short form)
	$(BIN)/python -m bench.spark $(ARGS)

spark-kills: setup ## kill -9 of driver, Python workers and broker under archive, topic and index jobs, ROUNDS times (20)
	$(BIN)/pytest tests/spark/test_kills.py --spark-kill-rounds=$(ROUNDS) --timeout=7200

example: $(VENV)/.dev ## generator, topic, pipeline, table and search index, query; ends with a table and a plot
	$(BIN)/python examples/orders.py $(ARGS)

bench-query: setup ## search, SQL and HTTP: what they cost and whether they are right (ARGS="--scale 0.02" for a short form)
	$(BIN)/python -m bench.query $(ARGS)

clean: ## remove everything that make made
	rm -rf $(VENV) .jars .foreign build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
