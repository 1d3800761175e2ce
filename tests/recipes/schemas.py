"""JSON Schemas of what the recipes use: Compose's services, KEDA's ScaledObject, Grafana's dashboards.

They are small and strict: a name that is not here is a slip of the pen, or must be looked up and added.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
WORDS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}


def fields(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


SPAN: Schema = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}
CONDITION = fields(
    "condition",
    condition={"enum": ["service_started", "service_healthy", "service_completed_successfully"]},
)
HEALTHCHECK = fields(
    "test",
    test={"type": "array", "items": TEXT, "minItems": 2, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
    interval=SPAN,
    timeout=SPAN,
    retries=COUNT,
    start_period=SPAN,
)
SERVICE = fields(
    "image",
    image=TEXT,
    build={"type": "string"},
    init={"type": "boolean"},
    read_only={"type": "boolean"},
    tmpfs=WORDS,
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    cap_drop=WORDS,
    security_opt=WORDS,
    environment=mapping({"type": "string"}),
    command=WORDS,
    ports=WORDS,
    volumes=WORDS,
    stop_grace_period=SPAN,
    depends_on=mapping(CONDITION),
    healthcheck=HEALTHCHECK,
)
COMPOSE: Schema = {
    **fields(
        "services",
        name={"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*$"},
        services={**mapping(SERVICE), "minProperties": 1},
        volumes=mapping({"type": ["object", "null"]}),
    ),
    "patternProperties": {"^x-": {}},
}

TRIGGER = {
    **fields(
        "type metadata",
        type=TEXT,
        name=TEXT,
        useCachedMetrics={"type": "boolean"},
        metricType={"enum": ["AverageValue", "Value", "Utilization"]},
        metadata=mapping({"type": "string"}),
        authenticationRef=fields(
            "name", name=TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}
        ),
    ),
    "if": {"properties": {"type": {"const": "prometheus"}}},
    "then": {"properties": {"metadata": {"required": ["serverAddress", "query", "threshold"]}}},
}
SCALED_OBJECT = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=fields(
        "name", name={"type": "string", "pattern": r"^[a-z0-9-]{1,63}$"}, namespace=TEXT, labels=mapping(TEXT)
    ),
    spec=fields(
        "scaleTargetRef triggers",
        scaleTargetRef=fields("name", name=TEXT, kind=TEXT, apiVersion=TEXT, envSourceContainerName=TEXT),
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        initialCooldownPeriod=COUNT,
        idleReplicaCount=COUNT,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        fallback=fields("failureThreshold replicas", failureThreshold=COUNT, replicas=COUNT),
        advanced={"type": "object"},
        triggers={"type": "array", "items": TRIGGER, "minItems": 1},
    ),
)

PLACE = fields("x y w h", x=COUNT, y=COUNT, w={"type": "integer", "minimum": 1, "maximum": 24}, h=COUNT)
SOURCE = fields("type uid", type={"const": "prometheus"}, uid=TEXT)
PANEL = fields(
    "id type title gridPos",
    id=COUNT,
    type={"enum": ["row", "timeseries"]},
    title=TEXT,
    collapsed={"type": "boolean"},
    gridPos=PLACE,
    datasource=SOURCE,
    fieldConfig=fields(
        "defaults overrides", defaults=fields("unit", unit=TEXT, min=COUNT), overrides={"type": "array"}
    ),
    options={"type": "object"},
    targets={
        "type": "array",
        "minItems": 1,
        "items": fields("refId expr datasource", refId=TEXT, expr=TEXT, legendFormat=TEXT, datasource=SOURCE),
    },
)
DASHBOARD = fields(
    "uid title schemaVersion panels templating time",
    uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
    title=TEXT,
    tags=WORDS,
    schemaVersion=COUNT,
    editable={"type": "boolean"},
    refresh=TEXT,
    time=fields("from to", **{"from": TEXT, "to": TEXT}),
    templating=fields("list", list={"type": "array", "items": {"type": "object", "required": ["name", "type"]}}),
    links={"type": "array"},
    panels={"type": "array", "items": PANEL, "minItems": 1},
)
ALERTS = fields(
    "groups",
    groups={
        "type": "array",
        "items": fields(
            "name rules",
            name=TEXT,
            rules={
                "type": "array",
                "items": fields(
                    "alert expr labels annotations",
                    alert={"type": "string", "pattern": "^Holdfast[A-Za-z]+$"},
                    expr=TEXT,
                    labels=fields("severity", severity={"enum": ["page", "ticket"]}),
                    annotations=fields("summary page", summary=TEXT, page=TEXT),
                    **{"for": SPAN},
                ),
            },
        ),
    },
)

# Keys of units that systemd 252 knows, as far as services of this kind use any.
UNIT_KEYS: dict[str, set[str]] = {
    "Unit": {
        "Description",
        "Documentation",
        "After",
        "Before",
        "Wants",
        "Requires",
        "StartLimitIntervalSec",
        "StartLimitBurst",
    },
    "Service": {
        *(
            "Type",
            "NotifyAccess",
            "WatchdogSec",
            "TimeoutStartSec",
            "TimeoutStopSec",
            "User",
            "Group",
            "WorkingDirectory",
        ),
        *(
            "EnvironmentFile",
            "Environment",
            "StateDirectory",
            "StateDirectoryMode",
            "ExecStart",
            "ExecStartPre",
            "ExecReload",
        ),
        *("Restart", "RestartSec", "RestartPreventExitStatus", "KillMode", "KillSignal", "OOMPolicy", "LimitNOFILE"),
        *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock", "ProtectControlGroups"),
        *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc"),
        *("NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities", "LockPersonality", "RemoveIPC"),
        *("RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
        *("SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber", "UMask", "ReadWritePaths"),
    },
    "Install": {"WantedBy", "Alias"},
}
