// Package doctor finds out whether a cluster can be worked with from here: who
// answers, as whom one is known, what the brokers are, whether the topics that
// hold state are healthy, and which of the ACLs that kshare's commands need are
// there. It sends no request that changes anything, and none that could: what
// cannot be found out that way is reported as unknown.
//
//	rep, err := doctor.Run(ctx, doctor.Options{Cluster: cfg})
package doctor
