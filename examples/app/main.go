// Command app shows how a program of another module uses kshare as a library. It
// reads orders from a share group, with exactly one effect for each:
//
//	app copy -b localhost:9092 -from orders -to shipped    a record for each order
//	app sink -b localhost:9092 -from orders -file out.tsv   a line for each order
//
// Both end when nothing came for a while (-idle), or with Ctrl-C.
package main

import (
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
	"github.com/kshare/kshare/share"
)

// options is what the command line says.
type options struct {
	bootstrap, from, to, file string
	group, id                 string
	idle                      time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("copy or sink?")
	}
	var o options
	fs := flag.NewFlagSet("app "+args[0], flag.ContinueOnError)
	fs.StringVar(&o.bootstrap, "b", "localhost:9092", "bootstrap servers, separated by commas")
	fs.StringVar(&o.from, "from", "orders", "topic to read")
	fs.StringVar(&o.to, "to", "shipped", "topic to write, for copy")
	fs.StringVar(&o.file, "file", "out.tsv", "file to write, for sink")
	fs.StringVar(&o.group, "group", "app", "share group")
	fs.StringVar(&o.id, "id", "app-1", "transactional ID; each process needs its own")
	fs.DurationVar(&o.idle, "idle", 10*time.Second, "end when nothing came for so long")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	do, ok := map[string]func(context.Context, *cluster.Client, options) (int, error){"copy": copyRecords, "sink": sinkRecords}[args[0]]
	if !ok {
		return fmt.Errorf("neither copy nor sink: %q", args[0])
	}
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(o.bootstrap, ","), ClientID: "app"})
	if err != nil {
		return err
	}
	defer cl.Close()
	n, err := do(ctx, cl, o)
	fmt.Println(n, "orders")
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
		fmt.Fprintln(os.Stderr, "app: leave:", err)
	}
}

// join makes a member of the share group. It has connections of its own: a broker
// answers what comes on one connection in turn, and may hold a fetch for a while.
func join(ctx context.Context, cl *cluster.Client, o options) (c *share.Consumer, done func(), err error) {
	own, err := cl.Clone()
	if err != nil {
		return nil, nil, err
	}
	if c, err = share.NewConsumer(ctx, own, share.Config{GroupID: o.group, Topics: []string{o.from}}); err != nil {
		own.Close()
		return nil, nil, err
	}
	return c, func() {
		leave(ctx, c.Close)
		own.Close()
	}, nil
}

// poll returns the next batch, nil when nothing came for a while.
func poll(ctx context.Context, c *share.Consumer, idle time.Duration) (*share.Batch, error) {
	pctx, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	b, err := c.Poll(pctx, 500)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return b, err
}
