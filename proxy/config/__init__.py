"""Configuration file: its settings, validation, and what a reload may change.

Rules: there is one YAML file; settings that Kafka also has keep Kafka's name, unit and meaning; a
mistake is reported in one line with the key's path. Attributes are named like the keys, with
underscores for dots.
"""

from proxy.config.changes import compare as compare
from proxy.config.listener import IssuerSettings as IssuerSettings
from proxy.config.listener import Listener as Listener
from proxy.config.listener import OauthbearerIssuer as OauthbearerIssuer
from proxy.config.listener import Routing as Routing
from proxy.config.load import Located as Located
from proxy.config.load import from_mapping as from_mapping
from proxy.config.load import json_schema as json_schema
from proxy.config.load import judged as judged
from proxy.config.load import judged_entirely as judged_entirely
from proxy.config.load import load as load
from proxy.config.load import located as located
from proxy.config.load import read as read
from proxy.config.load import unreported as unreported
from proxy.config.model import Authorizer as Authorizer
from proxy.config.model import Config as Config
from proxy.config.model import Events as Events
from proxy.config.model import Http as Http
from proxy.config.model import Quotas as Quotas
from proxy.config.model import QuotasMode as QuotasMode
from proxy.config.model import Store as Store
from proxy.config.model import Upstream as Upstream
from proxy.config.model import UpstreamProxyProtocol as UpstreamProxyProtocol
from proxy.config.values import Address as Address
from proxy.config.values import PortRange as PortRange
