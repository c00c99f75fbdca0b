"""Data: batches with ids, resident data, sources, fingerprints, corruption."""

from goldiprox.data.batch import TARGET_KEYS as TARGET_KEYS
from goldiprox.data.batch import Batch as Batch
from goldiprox.data.batch import WithIds as WithIds
from goldiprox.data.batch import as_batch as as_batch
from goldiprox.data.batch import iterate as iterate
from goldiprox.data.batch import map_tensors as map_tensors
from goldiprox.data.batch import unwrap as unwrap
from goldiprox.data.exchange import exchange as exchange
from goldiprox.data.fingerprint import damage_in_words as damage_in_words
from goldiprox.data.fingerprint import fingerprint as fingerprint
from goldiprox.data.fingerprint import labels_of as labels_of
from goldiprox.data.fingerprint import require_fingerprint as require_fingerprint
from goldiprox.data.fingerprint import require_labels_of_items as require_labels_of_items
from goldiprox.data.fingerprint import same_labels as same_labels
from goldiprox.data.resident import TensorData as TensorData
from goldiprox.data.sources import Source as Source
from goldiprox.data.sources import load as load
