# One command each: `make demo` runs the main job, `make test` the tests. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := indexer protos service clients tests benchmarks docs/site docs/notebooks
# On a terminal pip shows what it fetches; a log gets its errors alone.
QUIET := $(shell test -t 2 || echo --quiet)

# Those that take longest first: `reproduction` begins them in this order.
STUDIES := single continual single-variants memorisation aesop joint wikitext2 compact limits
# The others want no CIFAR-10: its study runs where its files are.
DATA = $(or $(DUALFORM_DATA),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dualform)
STUDIES += $(if $(wildcard $(DATA)/cifar-10-batches-bin/test_batch.bin*),cifar10)

.PHONY: setup demo test drill soak mutants processors seeds sanitize lint site notebooks dist coverage bench bench-quick reproduction reproduction-aesop reports attribution protos released clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml setup.py constraints.txt $(wildcard indexer/dualform/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dualform needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV): pip fetches PyTorch and all else that tests and studies need, which takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/dualform demo --out runs/demo

# As many workers as there are cores, each on one thread. Bytecode is kept, whatever the environment says: the tests start
# hundreds of processes, each of which would compile all modules again.
TESTED := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PARALLEL := --numprocesses auto --dist worksteal

test: setup
	$(TESTED) $(PARALLEL)

# The long forms of the tests that try to break it, one after another, and docs/results/reliability.md from what they report. Then
# the tests of numbers as other processors compute them.
soak: setup
	rm -f build/reliability.json
	DUALFORM_SOAK=1 $(TESTED) -m soak -o timeout=7200
	$(BIN)/python -m tests.reliability build/reliability.json docs/results/reliability.md
	$(MAKE) processors

# The folders that test numbers, with torch, oneDNN, MKL and OpenBLAS held to the instructions and kernels of four other x86
# processors; and the property tests with ten seeds. One of them alone: make processor-avx2, make seeds.
NUMBERS := $(addprefix tests/,record rules influence live query kernels rerun contract costs networks coverage site/test_notebooks.py)
plain := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Prescott
avx2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell
zen := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Zen
avx512 := ATEN_CPU_CAPABILITY=avx512 MKL_CBWR=AVX512 OPENBLAS_CORETYPE=SkylakeX

processors: $(addprefix processor-,plain avx2 zen $(if $(shell grep -sm1 avx512vl /proc/cpuinfo),avx512)) seeds

processor-%: setup
	@test -n "$($*)" || { echo "no processor is called $*: plain, avx2, zen or avx512"; exit 1; }
	env $($*) TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/build/inductor/$* $(TESTED) $(PARALLEL) $(NUMBERS)

seeds: setup
	for seed in 1 2 3 4 5 6 7 8 9 10; do $(TESTED) $(PARALLEL) \
		--hypothesis-seed=$$seed $$(grep -lrE --include='test_*.py' '^ *@given|StateMachine' tests) || exit 1; done

# The compiled loops with gcc's address and undefined-behaviour sanitizers, under their own tests and those of what they
# answer; then the same tests with Python's checks of its own memory. Tests that start processes or compile are left out.
SANITIZED := build/sanitized
SANITIZED_TESTS := tests/kernels tests/contract tests/record/test_resumed.py tests/query/test_gradients.py \
	tests/query/search/test_screen.py tests/query/weights/test_direct_outputs.py tests/record/audit/test_projection.py

sanitize: setup
	CC=gcc CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1" DUALFORM_REQUIRE_LOOPS=1 \
		$(BIN)/python setup.py --quiet build_ext --force --build-lib $(SANITIZED)
	DUALFORM_TESTED_LOOPS=$(SANITIZED)/dualform/kernels/_kernels.so \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest --capture=sys -o timeout=3600 --ignore tests/kernels/test_builds.py --ignore tests/kernels/test_forms.py \
		$(SANITIZED_TESTS)
	PYTHONMALLOC=debug OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore tests/kernels/test_builds.py $(SANITIZED_TESTS)

# The processes of shards killed and frozen fifty times, where the tests do it fifteen times.
drill: setup
	DUALFORM_DRILL=50 $(TESTED) tests/service/shards/test_drill.py

# Whether the tests notice a fault: sixty changes to the product, one at a time, which takes hours. It can be ended, and goes on.
mutants: setup
	$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --editable '.[dev,mutants]'
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants build/mutants.jsonl

# docs/results/coverage.md: which networks, optimizers, precisions and trainers are recorded how well, and what that takes. One
# process on one thread, for its clocks. Some rows alone: make coverage ROWS="GPT-2".
coverage: setup
	OMP_NUM_THREADS=1 DUALFORM_QUIET=1 $(BIN)/python -W ignore -m tests.coverage "$(ROWS)"

lint: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/python -m docs.site.prose
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against protos/released.binpb
	$(BIN)/lint-imports

# The site of docs/ in build/site, which opens from disk; a link that leads nowhere ends it (mkdocs.yml).
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# An archive of the sources and a wheel of this platform in build/dist, with what must be in them. Their version is git's
# tag (setup.py).
dist: setup
	rm -rf build/dist
	DUALFORM_REQUIRE_LOOPS=1 $(BIN)/python -m build --outdir build/dist
	$(BIN)/python -m twine check --strict build/dist/*
	$(BIN)/python -m tests.packaging.contents build/dist/*

# The notebooks of docs/, run from the top and stored with what they print and draw.
notebooks: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.site.notebooks

# What questions cost, beside what else could answer them (docs/results/benchmarks.md). The peers are an extra of their own, so
# that the tests need none of them. Example: make bench ONLY="topk filtered".
bench: $(VENV)/peers
	$(BIN)/python -m benchmarks $(addprefix --only ,$(ONLY)) $(BENCH)

bench-quick: $(VENV)/peers
	$(BIN)/python -m benchmarks --quick --out build/bench $(addprefix --only ,$(ONLY)) $(BENCH)

$(VENV)/peers: $(VENV)/ready
	@echo "Adding what the benchmarks compare with to $(VENV)."
	$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --editable '.[dev,bench]'
	@touch $@

# Every study, each into runs/NAME, and docs/results/reproduction.md from their reports; a study whose report is there is not run
# again. Two run at a time, each on one thread, so that a seed gives the same bits on any number of cores: less than two
# hours on two of them. Where one fails the others still run; then the command fails, and names it.
RUNS := $(STUDIES) aesop-rerun
REPORT = runs/$(1)/report/report.json
JOBS ?= 2

reproduction: setup
	@$(MAKE) --keep-going --jobs=$(JOBS) reports || { \
		for run in $(RUNS); do test -f $(call REPORT,$$run) || echo "no report of the study $$run" >&2; done; exit 1; }
	$(BIN)/python -m dualform_studies.reproduction runs docs

reports: $(foreach run,$(RUNS),$(call REPORT,$(run)))

# Aesop at the paper's size, an hour on two cores: as many updates as that allows, in whole passes of 18. Two trainings, the
# second of which answers what the first asked, so that no keys are stored. With a GPU, UPDATES=5000 is the paper's number.
UPDATES ?= 450

reproduction-aesop: setup
	@$(MAKE) $(call REPORT,aesop-paper)
	$(BIN)/python -m dualform_studies.reproduction runs docs

# Which score predicts a retraining? dualform beside captum, dattri and kronfluence, an extra of their own: hours on one thread.
# runs/attribution keeps what is computed, so a run that was cut off goes on. docs/results/attribution.md is written from its report.
attribution: $(VENV)/attribution-peers
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.attribution --seed 1 --out runs/attribution

$(VENV)/attribution-peers: $(VENV)/ready
	@echo "Adding what the benchmark of attribution compares with to $(VENV)."
	$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --editable '.[dev,peers]'
	@touch $@

OPTIONS.aesop-paper := aesop --preset paper --rerun --steps $(UPDATES)
THREADS.aesop-paper := 2
OPTIONS.aesop-rerun := aesop --rerun
OPTIONS.single-variants := single-variants --runs 1

$(call REPORT,%): | $(VENV)/ready
	@! test -e runs/$* || { echo "runs/$* has no report: remove it, or give it another name" >&2; exit 1; }
	rm -rf runs/$*.partial
	OMP_NUM_THREADS=$(or $(THREADS.$*),1) $(BIN)/dualform study $(or $(OPTIONS.$*),$*) --out runs/$*.partial --json > /dev/null
	mv runs/$*.partial runs/$*

# The generated code is checked in, so that installing dualform needs no compiler. The compiler is the oldest that
# pyproject.toml allows at run time (generated code refuses a runtime older than itself), so it has its own environment.
COMPILER := build/protoc
PROTOC := grpcio-tools==1.80.0 grpcio==1.80.0 mypy-protobuf==3.7.0

protos: $(COMPILER)/ready
	$(COMPILER)/bin/python -m grpc_tools.protoc --proto_path=protos \
		--plugin=protoc-gen-mypy=$(COMPILER)/bin/protoc-gen-mypy \
		--plugin=protoc-gen-mypy_grpc=$(COMPILER)/bin/protoc-gen-mypy_grpc \
		--python_out=protos --grpc_python_out=protos --mypy_out=quiet:protos --mypy_grpc_out=quiet:protos \
		protos/dualform_proto/v1/dualform.proto

# The shape that clients elsewhere were written against: `make lint` refuses what would break one. CONTRIBUTING.md says when
# it moves on.
released: setup
	$(BIN)/buf build protos --exclude-source-info -o protos/released.binpb

$(COMPILER)/ready: Makefile
	$(PYTHON) -m venv $(COMPILER)
	$(COMPILER)/bin/python -m pip install --quiet $(PROTOC)
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
