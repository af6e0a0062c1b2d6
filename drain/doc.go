// Package drain brings the number of records in TX_PENDING (KIP-1289) to zero,
// of a cluster or of some share groups or topics, and says so only when it is
// sure.
//
// It has two halves:
//
//   - [NewPlan] is a pure function from evidence (package inspect) to a [Plan]:
//     who holds records, whether that ends by itself and when, and what would be
//     done about it. [Options] say what may be done; the zero value waits only.
//   - [Plan.Execute] looks, acts where the plan says so, and looks again until
//     nothing is pending, nothing will change any more, or time is up. It takes
//     its eyes ([Observer]), hands ([Actor]) and clock ([Clock]) as interfaces;
//     [ClusterObserver] and [ClusterActor] are those for a cluster.
//
// Evidence is a sample: a record that is staged and resolved between two looks
// is not seen, and a transaction may be missed while its coordinator moves. So
// nothing pending once is not drained. It takes several looks in a row over a
// quiet period, and every source readable in each of them; see
// [Options.QuietPeriod]. What cannot be seen makes the result
// [StatusUnknown], never [StatusDrained]; what leaders may hold in memory, too,
// see [Options.AcceptMemory].
//
//	seen, err := observer.Observe(ctx, nil)
//	if err != nil {
//		return err
//	}
//	plan, err := drain.NewPlan(seen.Evidence, drain.Options{Groups: []string{"billing"}}, now)
//	if err != nil {
//		return err
//	}
//	res, err := plan.Execute(ctx, drain.Execution{Observer: observer, Actor: actor, Clock: clock})
//
// It stops no producer. One that goes on staging is named in the result
// ([Result.Running]), and is the business of whoever runs it.
//
// [Fence] and [WriteMarkers] are the two acts by themselves, for commands that
// are told what to do.
package drain
