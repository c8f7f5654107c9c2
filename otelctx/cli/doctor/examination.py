"""The examination: turns otelctx on in this process as the environment says, imports the application, and looks."""

import importlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path

from otelctx import bootstrap, config, installation, runtime
from otelctx.auto_instrument import opentelemetry_instrument_is_at_work
from otelctx.cli.doctor import alarm, exporters, patches, sources, versions
from otelctx.cli.doctor.report import Report
from otelctx.scope import VERSION


def examine(module: str | None, *, with_alert: bool) -> Report:
    """Look at everything; `module` is imported first, as the application's own start would do it."""
    report = Report(
        otelctx=VERSION,
        python=platform.python_version(),
        executable=sys.executable,
        enabled=bool(bootstrap.switched_by(os.environ)),
    )
    settings, problems = config.load(None)
    report.problems.extend(problems)
    report.settings = _settings(settings)
    with _listening(report, known=problems):
        _environment(report)
        installation.install_from_environment()
        if not installation.is_installed():
            report.problems.append("otelctx could not be installed in this process")
        if module is not None:
            _import(module, report)
        report.versions = versions.installed()
        report.problems.extend(versions.conflicts())
        report.tools = list(versions.tools())
        _look_at_patches(report, settings)
        report.sources = list(sources.found())
        report.problems.extend(line for found in report.sources if (line := sources.problem(found)))
        report.problems.extend(sources.missing(settings))
        if not report.sources:
            report.notes.append("no key has a source: what travels is what otelctx.bind binds, and nothing else")
        _look_at_exporters(report)
        if with_alert:
            named = any(
                os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip() for signal in ("TRACES", "METRICS", "LOGS")
            )
            report.test_alert = alarm.send(auto_instrumented=bool(report.exporters) or named)
            report.problems.extend(line for went in report.test_alert.items() if (line := alarm.problem(*went)))
    _look_at_the_log(report)
    return report


def _settings(settings: config.Config) -> dict[str, object]:
    """What is not as it is by default, by its path; the sources of keys have their own part in the report."""
    shown: dict[str, object] = {"mode": settings.mode, "spans": settings.spans, "keys": list(settings.keys)}
    default = config.Config()
    for part in fields(settings):
        value, usual = getattr(settings, part.name), getattr(default, part.name)
        if part.name in shown or value == usual:
            continue
        if not is_dataclass(value):
            shown[part.name] = value
            continue
        for one in fields(value):
            chosen = getattr(value, one.name)
            if chosen != getattr(usual, one.name):
                shown[f"{part.name}.{one.name}"] = dict(chosen) if isinstance(chosen, Mapping) else chosen
    return shown


def _environment(report: Report) -> None:
    if bootstrap.switched_by(os.environ) is False:
        report.notes.append("OTELCTX_ENABLED turns otelctx off here; the doctor has turned it on for itself")
    elif not report.enabled:
        report.notes.append("OTELCTX_ENABLED is not set here; the doctor has turned otelctx on for itself")
    if not _is_started_by_site():
        # Where opentelemetry-instrument starts the application, it finds otelctx by itself.
        (report.notes if opentelemetry_instrument_is_at_work() else report.problems).append(
            "OTELCTX_ENABLED has no effect here: otelctx.pth is not in this environment's site-packages, and is looked "
            "for nowhere else (not in PYTHONPATH); install the package there"
        )
    disabled = os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    if "otelctx" in (name.strip() for name in disabled.split(",")):
        report.notes.append(
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS names otelctx: opentelemetry-instrument leaves it out"
        )
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        report.notes.append("OTEL_SDK_DISABLED is true: alerts reach the log and callbacks alone")
    if report.enabled and sys.flags.no_site:
        report.problems.append("this interpreter runs without site (-S), and so without otelctx.pth")


def _is_started_by_site() -> bool:
    """Whether an interpreter of this environment finds otelctx when it starts."""
    environ = {**os.environ, "OTELCTX_ENABLED": "true", "OTELCTX_AUTO_INSTRUMENT": "false"}
    program = "import sys; sys.exit(0 if 'otelctx.bootstrap' in sys.modules else 3)"
    try:
        return subprocess.run([sys.executable, "-c", program], env=environ, timeout=30, check=False).returncode != 3
    except (OSError, subprocess.SubprocessError):
        return True  # who knows


def _import(module: str, report: Report) -> None:
    sys.path.insert(0, str(Path.cwd()))
    name = module.partition(":")[0]
    try:
        importlib.import_module(name)
    except SystemExit as exc:
        report.problems.append(f"--module {name}: it ended the process as it was imported (SystemExit: {exc.code})")
    except Exception as exc:
        report.problems.append(f"--module {name}: cannot be imported: {type(exc).__name__}: {exc}")


def _look_at_patches(report: Report, settings: config.Config) -> None:
    report.patches = list(patches.patched())
    done = {(one.module, one.attribute) for one in report.patches}
    wanted = list(patches.wanted())
    report.waiting = sorted({module for module, _ in wanted if module not in sys.modules})
    if not runtime.adopt() and not runtime.is_adopted() and "opentelemetry.context" in sys.modules:
        report.problems.append(
            "OpenTelemetry's context runtime is not the ContextVar one (OTEL_PYTHON_CONTEXT): it cannot be carried"
        )
    for one in report.patches:
        if not one.outermost and "otelctx" not in one.layers:
            report.notes.append(f"{one.module}.{one.attribute} was replaced by {one.layers[0]} after otelctx")
    report.notes.extend(
        f"{module}.{attribute} is not there in this version, and not patched"
        for module, attribute in wanted
        if module in sys.modules and (module, attribute) not in done
    )
    if settings.mode == "observe":
        report.notes.append("mode is observe: no key is carried, so no hop was tried")
        return
    report.hops = list(patches.tried())
    report.problems.extend(
        f"{hop.name} does not carry the key: the work saw {hop.seen}" for hop in report.hops if not hop.carried
    )


def _look_at_exporters(report: Report) -> None:
    is_auto = bool(bootstrap.truth(os.environ.get("OTELCTX_AUTO_INSTRUMENT")))
    has_distro = "opentelemetry-distro" in report.versions
    report.exporters = list(exporters.configured(by_default=is_auto and has_distro))
    report.problems.extend(
        f"{one.signal}: {one.endpoint} does not answer: {one.detail}" for one in report.exporters if not one.answers
    )
    if is_auto and not has_distro:
        report.problems.append("OTELCTX_AUTO_INSTRUMENT needs opentelemetry-distro: pip install 'otelctx[otlp]'")
    elif not report.exporters:
        report.notes.append(
            "no OTLP exporter is named in the environment (OTEL_EXPORTER_OTLP_ENDPOINT): alerts go to the log, and to "
            "whatever SDK the application sets up itself"
        )


def _look_at_the_log(report: Report) -> None:
    logger = logging.getLogger("otelctx")
    if logger.disabled or not logger.isEnabledFor(logging.WARNING):
        report.problems.append("the logger otelctx is off or above WARNING: alerts do not reach the log")


@contextmanager
def _listening(report: Report, known: tuple[str, ...]) -> Iterator[None]:
    """What otelctx itself reports meanwhile (a runner that is not there) is a problem too, an alert is worth a note."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if hasattr(record, "otelctx_key"):  # an alert, which is about the application
                if alarm.EXPECTED not in message:
                    report.notes.append(message)
            elif not any(problem in message for problem in known):
                report.problems.append(message.removeprefix("otelctx: "))

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("otelctx")
    logger.addHandler(listener)
    propagate, logger.propagate = logger.propagate, False  # it is in the report; standard error is for the command
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
