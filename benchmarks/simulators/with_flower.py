"""Flower: FedAvg of its Message API in its Ray simulation, one worker per core, without evaluation."""

import os
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

here = str(Path(__file__).parent)
# Before Flower and Ray are imported, and for their workers, too.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": here,
}

from flower_client import app as client_app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from workload import accuracy, arguments, load, network, report  # noqa: E402


class Timed(FedAvg):
    """FedAvg that notes when each round began and ended, and counts steps."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=clients, min_evaluate_nodes=0, min_available_nodes=clients
        )
        self.seconds: list[float] = []
        self.steps, self.workers = 0, 0
        self.started = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start the clock, and the round."""
        self.started = perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, then stop the clock."""
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.seconds.append(perf_counter() - self.started)
        metrics = [reply.content["metrics"] for reply in replies if not reply.has_error()]
        self.steps += sum(int(each["steps"]) for each in metrics)
        self.workers = len({each["process"] for each in metrics})
        return result


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    x, y = load(workload.data)
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy, model = Timed(len(y)), network(workload.model)
        work = {"batch": workload.batch, "epochs": workload.epochs}
        config = ConfigRecord({"data": workload.data, "model": workload.model, **work})
        start = ArrayRecord(model.state_dict())
        result = strategy.start(grid, start, num_rounds=workload.rounds, train_config=config)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        report(f"Flower, {strategy.workers} workers", strategy.seconds, strategy.steps, accuracy(model, x, y))

    run_simulation(
        server_app=app,
        client_app=client_app,
        num_supernodes=len(y),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workload.cores, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
