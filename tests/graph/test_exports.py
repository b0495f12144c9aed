import layby.graph


def test_the_public_names_are_these():
    """A name is added or taken away on purpose, never by accident."""
    assert sorted(layby.graph.__all__) == [
        "AsyncGraphDriver",
        "ChannelBus",
        "EdgePolicy",
        "Graph",
        "GraphContext",
        "GraphError",
        "GraphFormError",
        "GraphRuntime",
        "GraphTrigger",
        "Message",
        "MessageMetadata",
        "Plan",
        "PublicationRefused",
        "PublishResult",
        "TaskFailed",
        "TraceEvent",
        "graph_from_text",
        "load_graph",
    ]
    assert all(hasattr(layby.graph, name) for name in layby.graph.__all__)
