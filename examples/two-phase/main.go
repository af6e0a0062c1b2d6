// Command two-phase reads orders from a share group and writes them to PostgreSQL,
// with exactly one effect for each: that an order is acknowledged and that its row
// is there happen together, or not at all. docs/two-phase.md says why it is right.
//
//	two-phase run -b localhost:9092 -database 'host=localhost dbname=orders'
//	two-phase recover -b localhost:9092 -database 'host=localhost dbname=orders'
//
// Both first end what a predecessor with the same -id has left in between; recover
// stops there. The server needs max_prepared_transactions above 0. run ends when
// nothing came for a while (-idle), or with Ctrl-C.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/txn"
)

// options is what the command line says.
type options struct {
	bootstrap, database   string
	from, group, id       string
	idle, timeout         time.Duration
	batch                 int
	twoPhaseCommit, abort bool
	hold                  string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "two-phase:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "run" && args[0] != "recover" {
		return errors.New("run or recover?")
	}
	var o options
	fs := flag.NewFlagSet("two-phase "+args[0], flag.ContinueOnError)
	fs.StringVar(&o.bootstrap, "b", "localhost:9092", "bootstrap servers, separated by commas")
	fs.StringVar(&o.database, "database", "", "connection string of PostgreSQL; what it does not say is in PGHOST and the like")
	fs.StringVar(&o.from, "from", "orders", "topic to read")
	fs.StringVar(&o.group, "group", "two-phase", "share group")
	fs.StringVar(&o.id, "id", "two-phase-1", "transactional ID; each process needs its own, and keeps it")
	fs.DurationVar(&o.idle, "idle", 10*time.Second, "end when nothing came for so long")
	fs.DurationVar(&o.timeout, "txn-timeout", txn.DefaultTimeout, "transaction timeout")
	fs.IntVar(&o.batch, "batch", 500, "orders in one transaction, at most")
	fs.BoolVar(&o.twoPhaseCommit, "two-phase-commit", false, "transactions without a timeout, where the brokers offer that (KIP-939)")
	fs.BoolVar(&o.abort, "abort", false, "abort what a predecessor has prepared and is not committed yet, in place of committing it")
	fs.StringVar(&o.hold, "hold", "", "a drill: the first time after this `step` wait for a line on stdin ("+strings.Join(steps, ", ")+")")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(o.bootstrap, ","), ClientID: "two-phase"})
	if err != nil {
		return err
	}
	defer cl.Close()
	db, err := openDatabase(ctx, o.database, o.id)
	if err != nil {
		return err
	}
	defer leave(ctx, db.conn.Close)
	if args[0] == "recover" {
		return recoverPrepared(ctx, cl, db, o.abort)
	}
	w := &worker{options: o, cl: cl, db: db}
	err = w.run(ctx)
	fmt.Printf("%d orders, %d of them were there\n", w.orders, w.known)
	if ctx.Err() != nil {
		return nil // as was asked for
	}
	return err
}

// leave closes something even when the program was told to stop.
func leave(ctx context.Context, what func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := what(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "two-phase: leave:", err)
	}
}

// The steps between which a process may die.
const (
	written          = "written"           // rows, in a transaction of the database that is open
	kafkaPrepared    = "kafka-prepared"    // acknowledgements are staged, there is a token
	recorded         = "recorded"          // the token, in the same transaction as the rows
	databasePrepared = "database-prepared" // PREPARE TRANSACTION
	kafkaCommitted   = "kafka-committed"   // which is the decision
	databaseFollowed = "database-followed" // COMMIT PREPARED
)

var steps = []string{written, kafkaPrepared, recorded, databasePrepared, kafkaCommitted, databaseFollowed}

// at holds the process for a drill, to be killed there or to go on late.
func (o *options) at(step string) {
	if o.hold != step {
		return
	}
	o.hold = ""
	fmt.Fprintln(os.Stderr, "two-phase: holding after", step)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // its end is as good as a line
}
