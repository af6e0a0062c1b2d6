// Package wiretap listens to what a client and brokers say to each other, for
// tests of what kshare sends and, above all, of what it does not. It is put where
// the client dials, or where the broker listens:
//
//	tap := wiretap.New()
//	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: addrs, Dialer: tap.Dial})
//	...
//	tap.ReadOnly(t)
package wiretap
