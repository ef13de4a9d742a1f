"""Choice of the sink for a target; its library is loaded here, and nowhere else."""

from collections.abc import Callable

from metrics.delivery.deliverer import Sink
from metrics.delivery.target import Target, TargetKind
from proxy.delivery.topic import Settings


def open_sink(target: Target, kafka: Callable[[], Settings], is_over: Callable[[], bool]) -> Sink:
    """Return the sink for a target.

    `kafka` returns the settings of librdkafka for a topic; `is_over` says that the delivery is to
    end, whatever is left.
    """
    match target.kind:
        case TargetKind.KAFKA:
            from proxy.delivery.topic import TopicSink

            return TopicSink(target.place, kafka, is_over)
        case TargetKind.FOLDER:
            from proxy.delivery.folder import FolderSink

            return FolderSink(target.folder)
        case TargetKind.OBJECTS:
            from proxy.delivery.objects import ObjectSink

            return ObjectSink(target.place, target.prefix)
