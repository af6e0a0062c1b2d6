package commands

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/output"
	"github.com/spf13/pflag"
)

// globalFlags are the flags that every command has.
type globalFlags struct {
	Bootstrap []string
	Output    output.Format
	Timeout   time.Duration
	Yes       bool
	Quiet     bool
	Color     string
	NoColor   bool
	resultFlags
}

func (g *globalFlags) addTo(fs *pflag.FlagSet) {
	g.Output = output.FormatTable
	fs.StringSliceVarP(&g.Bootstrap, "bootstrap-server", "b", nil, "`host:port` of brokers to connect to first")
	fs.VarP(&g.Output, "output", "o", "`format` of the result: table, wide, json, yaml or csv")
	fs.DurationVar(&g.Timeout, "timeout", 0, "end the whole command after `duration` (default no limit)")
	fs.BoolVar(&g.Yes, "yes", false, "do not ask before changing the cluster")
	fs.BoolVarP(&g.Quiet, "quiet", "q", false, "show neither progress nor notices")
	fs.StringVar(&g.Color, "color", colorAuto, "`when` to colour: auto, always or never")
	fs.BoolVar(&g.NoColor, "no-color", false, "never colour, the same as --color=never")
	g.resultFlags.addTo(fs)
}

// repeated is the value of a flag that takes one string and may be given more
// than once. It is as pflag's StringArray, which makes a CSV writer with a buffer of
// 4 KiB to say what its default is, for each flag of each command.
type repeated struct {
	to    *[]string
	given bool
}

func addRepeated(fs *pflag.FlagSet, to *[]string, name, usage string) {
	fs.Var(&repeated{to: to}, name, usage)
}

// Set adds a value; the first one replaces what was there.
func (r *repeated) Set(s string) error {
	if !r.given {
		*r.to, r.given = nil, true
	}
	*r.to = append(*r.to, s)
	return nil
}

// String returns all values, for people; "", which pflag takes for no default to
// tell of, for none.
func (r *repeated) String() string { return strings.Join(*r.to, ",") }

// Type makes cobra complete the flag also when it was given already.
func (*repeated) Type() string { return "stringArray" }

// Append implements pflag.SliceValue.
func (r *repeated) Append(s string) error {
	*r.to = append(*r.to, s)
	return nil
}

// Replace implements pflag.SliceValue.
func (r *repeated) Replace(all []string) error {
	*r.to = slices.Clone(all)
	return nil
}

// GetSlice implements pflag.SliceValue.
func (r *repeated) GetSlice() []string { return slices.Clone(*r.to) }

// hideDefaults keeps the values that stand for "not given" out of help texts.
func hideDefaults(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		fs.Lookup(name).DefValue = "0"
	}
}

const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// check returns a usage error for values that no command could use.
func (g *globalFlags) check() error {
	if !slices.Contains([]string{colorAuto, colorAlways, colorNever}, g.Color) {
		return usagef("invalid argument %q for \"--color\" flag: want auto, always or never", g.Color)
	}
	if g.Timeout < 0 {
		return usagef("invalid argument %q for \"--timeout\" flag: want a positive duration", g.Timeout)
	}
	return nil
}

// color reports whether to colour a stream that is a terminal or not.
// --color=always wins over all, then what forbids it, then the terminal.
func (d *Deps) color(tty bool) bool {
	switch {
	case d.flags.NoColor || d.flags.Color == colorNever:
		return false
	case d.flags.Color == colorAlways:
		return true
	default:
		return tty && d.Getenv("NO_COLOR") == "" && d.Getenv("TERM") != "dumb"
	}
}

// isServer holds for a host with or without a port.
func isServer(s string) bool {
	if !strings.Contains(s, ":") {
		return isHost(s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || !isHost(host) {
		return false
	}
	n, err := strconv.Atoi(port)
	return err == nil && n >= 1 && n <= maxPort
}

// Confirm asks before the cluster is changed: the answer must be want. With
// --yes it does not ask. Where it cannot ask it fails with a usage error and
// reads nothing, so that a script never answers by accident.
func (d *Deps) Confirm(question, want string) error {
	if err := d.canConfirm(); err != nil || d.flags.Yes {
		return err
	}
	fmt.Fprint(d.ErrOut, d.wrap(fmt.Sprintf("%s Type %q to go on:", output.Escape(question), want), 0)+" ")
	got, err := readLine(d.In)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read confirmation: %w", err)
	}
	if strings.TrimSpace(got) != want {
		return errors.New("not confirmed, nothing was changed")
	}
	return nil
}

// canConfirm returns the usage error of [Deps.Confirm] where it could not ask. A
// command that is sure to ask calls it before anything is sent.
func (d *Deps) canConfirm() error {
	if d.flags.Yes || d.StdinTTY && d.StderrTTY {
		return nil
	}
	return hintf(usagef("this changes the cluster and there is no terminal to confirm it on"),
		"repeat the command with --yes, or with --dry-run to see what it would do")
}

// readLine reads to the first line feed, byte by byte: what follows on stdin
// belongs to somebody else.
func readLine(r io.Reader) (string, error) {
	var line []byte
	buf := make([]byte, 1)
	for {
		n, err := r.Read(buf)
		if n == 1 {
			if buf[0] == '\n' {
				return string(line), nil
			}
			line = append(line, buf[0])
		}
		if err != nil {
			return string(line), err
		}
	}
}
