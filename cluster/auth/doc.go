// Package auth turns what an operator has, the client.properties of Kafka's Java
// tools or a few settings, into what a Go client needs: a [tls.Config] and a SASL
// mechanism.
//
//	c, err := auth.LoadClientProperties("client.properties", auth.Override{})
//	if err != nil {
//		return err
//	}
//	tlsConfig, mechanism, err := c.Options.Client()
//	...
//	cl, err := cluster.Connect(ctx, cluster.Config{
//		BootstrapServers: c.BootstrapServers, TLS: tlsConfig, SASL: mechanism,
//	})
//
// A file means here what it means to Kafka's tools: it is read as
// java.util.Properties reads it, sasl.jaas.config as Kafka's own parser does, and
// PEM files, PKCS12 and JKS stores are opened. Every key of the file is used, or
// [ClientProperties.NotUsed] names it.
//
// It opens no connection but to the token endpoint of OAUTHBEARER, and there only
// when a connection to a broker is authenticated. Secrets are of type [Secret],
// which does not print itself, and no error has one in it.
package auth
