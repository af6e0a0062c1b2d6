// Package cluster is a connection to a Kafka cluster made from configuration,
// together with what has to be known before anything of KIP-1289 is sent: the
// ApiVersions of every broker, the dialect that they speak, and why.
//
// It decides by numbers only where released Kafka does not use the same numbers
// for something else; see [Detect]. It never probes by sending.
//
//	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: []string{"localhost:9092"}})
//	if err != nil {
//		return err
//	}
//	defer cl.Close()
//	support, err := cl.TxnShareAcknowledgeSupport(ctx)
package cluster
