// Package ctp is the consume-transform-produce loop: records of a share group
// are transformed, produced to another topic, and acknowledged, each batch in
// one Kafka transaction (KIP-1289).
//
// Each worker is one member of the share group with one transactional ID. While
// it works on a batch, the next one is being fetched; records are produced while
// later ones are transformed, and acknowledgements are staged while the last
// records are on their way. A batch is committed when everything was confirmed
// and its deadlines leave a margin, and aborted otherwise: then its records go
// back to the share group.
package ctp
