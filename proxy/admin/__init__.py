"""Client for the administration of a proxy, or of Kafka itself: `AdminClient`."""

from proxy.acl.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.admin.acl_messages import (
    CreateAclsResult,
    DeleteAclsResult,
    DeletedAcl,
    DescribeAclsResult,
    DescribedAcls,
    FilterResult,
)
from proxy.admin.client import AdminClient
from proxy.admin.errors import (
    AdminError,
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnavailable,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    SecurityDisabled,
    UnsupportedVersion,
)
from proxy.admin.properties import ClientSettings, read_client_properties
from proxy.admin.quota_messages import (
    ANY_NAME,
    AlterClientQuotasResult,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotas,
    DescribeClientQuotasResult,
)
from proxy.admin.security import Login, OAuthBearer, Plain, Scram
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey

__all__ = (
    "ANY_NAME",
    "DEFAULT",
    "Acl",
    "AclFilter",
    "AdminClient",
    "AdminError",
    "AlterClientQuotasResult",
    "AuthenticationFailed",
    "AuthorizationFailed",
    "BrokerUnavailable",
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClientQuotas",
    "ClientSettings",
    "CreateAclsResult",
    "DeleteAclsResult",
    "DeletedAcl",
    "DescribeAclsResult",
    "DescribeClientQuotasResult",
    "DescribedAcls",
    "FilterResult",
    "InvalidRequest",
    "KafkaError",
    "Login",
    "OAuthBearer",
    "Operation",
    "PatternType",
    "Permission",
    "Plain",
    "PolicyViolation",
    "QuotaEntity",
    "QuotaKey",
    "ResourceType",
    "Scram",
    "SecurityDisabled",
    "UnsupportedVersion",
    "read_client_properties",
)
