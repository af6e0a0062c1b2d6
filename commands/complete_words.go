package commands

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/completions"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
)

// flagWords says what the values of flags are completed to: --FLAG is for flags
// of a name in all commands, COMMAND --FLAG for that of one command. All flags
// are here that take a value.
//
// Transactional IDs are not offered to who begins a transaction: it would fence
// the one that has the ID.
func flagWords() map[string]words {
	return map[string]words{
		// Of all commands.
		"--bootstrap-server": from((*typing).servers),
		"--output":           oneFrom(outputFormats),
		"--timeout":          nothing(),
		"--color":            oneOf(colorAuto, colorAlways, colorNever),
		"--columns":          from((*typing).columns),
		"--output-jq":        nothing(),
		"--time-zone":        among(completions.Choice{Word: "UTC"}, completions.Choice{Word: "Local", About: "that of this machine"}),

		// Of connections.
		"--dialect":               oneFrom(dialects),
		"--context":               from((*typing).contexts),
		"--command-config":        files("properties", "conf", "config", "cfg"),
		"--tls-ca":                files("pem", "crt", "cer"),
		"--tls-cert":              files("pem", "crt", "cer"),
		"--tls-key":               files("pem", "key"),
		"--tls-server-name":       nothing(),
		"--sasl-mechanism":        oneOf(auth.Mechanisms()...),
		"--sasl-user":             nothing(),
		"--sasl-password-file":    files(),
		"--sasl-password-command": files(),

		// Of clusters.
		"--group":                    from((*typing).groups),
		"--topic":                    from((*typing).topics),
		"--txn":                      from((*typing).openTransactions),
		"--transactional-id":         nothing(),
		"doctor --transactional-id":  from((*typing).transactions),
		"drain --fence":              from((*typing).fence),
		"inspect txn --state":        oneOf(txnStates()...),
		"--partition":                from((*typing).partitionsOfFlag),
		"--accept":                   from((*typing).topicPartitions),
		"--reject":                   from((*typing).topicPartitions),
		"--from-file":                files(),
		"--token-file":               files(),
		"txn prepare --produce":      from((*typing).topicFile),
		"--feature":                  from((*typing).nameLevel),
		"--version":                  from((*typing).levelOfFeature),
		"--enable":                   among(completions.Choice{Word: feature.EnableTxnAcks, About: "transactional acknowledgements (KIP-1289)"}),
		"feature plan --to":          from((*typing).nameLevel),
		"feature mapping --release":  oneFrom(releases),
		"inspect metrics --alert":    oneFrom(func() []completions.Choice { return completions.Words(inspect.AlertNames()...) }),
		"config set-context --set":   from((*typing).settingValue),
		"config set-context --unset": oneFrom(func() []completions.Choice { return settingNames("") }),

		"ctp --from":              from((*typing).topics),
		"ctp --to":                from((*typing).topics),
		"ctp --dlq":               from((*typing).topics),
		"ctp --topic":             nothing(), // is to be created
		"ctp --load":              from((*typing).topicFile),
		"ctp --exec":              files(),
		"ctp --partition":         among(completions.Choice{Word: partitionHash, About: "by the hash of the key"}, completions.Choice{Word: partitionKeep, About: "that of the source"}),
		"ctp --guarantee":         oneOf(string(ctp.ExactlyOnce), string(ctp.AtLeastOnce)),
		"ctp --on-error":          oneOf(string(ctp.Fail), string(ctp.Release), string(ctp.Reject)),
		"ctp --auto-offset-reset": from((*typing).offsetReset),
		"ctp --isolation-level":   oneOf("read_committed", "read_uncommitted"),
		"--profile":               oneFrom(dialects),

		// Of sandboxes.
		"sandbox run --topic":           nothing(), // is to be created
		"sandbox run --load":            from((*typing).topicFile),
		"sandbox run --pending-state":   among(completions.Choice{Word: pendingPersisted, About: "outlives the leader"}, completions.Choice{Word: pendingMemory, About: "as in the voted text"}),
		"sandbox run --data-dir":        directories(),
		"sandbox run --broker-config":   nothing(),
		"sandbox run --share-version":   nothing(),
		"sandbox run --advertised-host": nothing(),
		"sandbox run --brokers":         nothing(),
		"sandbox run --port":            nothing(),
		"--control":                     nothing(),

		"sandbox fault inject --transactional-id": from((*typing).openTransactions),
		"sandbox fault inject --coordinator":      oneOf("transaction", "share"),
		"sandbox fault inject --error":            oneFrom(errorNames),
		"sandbox fault inject --broker":           from((*typing).sandboxNodes),
		"sandbox fault inject --to-broker":        from((*typing).sandboxNodes),
		"sandbox fault inject --api-key":          nothing(),
		"sandbox fault inject --count":            nothing(),
		"sandbox fault inject --state-partition":  nothing(),

		// Numbers, durations, and what nobody else can know.
		"--abort-every":        nothing(),
		"--metrics-addr":       nothing(),
		"--batch-records":      nothing(),
		"--coordinator-epoch":  nothing(),
		"--duration":           nothing(),
		"--endpoint":           nothing(),
		"--endpoint-timeout":   nothing(),
		"--exec-timeout":       nothing(),
		"--for":                nothing(),
		"--hold-before-commit": nothing(),
		"--interval":           nothing(),
		"--jolokia":            nothing(),
		"--jq":                 nothing(),
		"--max-attempts":       nothing(),
		"--max-records":        nothing(),
		"--older-than":         nothing(),
		"--pattern":            nothing(),
		"--producer-epoch":     nothing(),
		"--producer-id":        nothing(),
		"--quiet-period":       nothing(),
		"--rate":               nothing(),
		"--stall-timeout":      nothing(),
		"--start-offset":       nothing(),
		"--txn-timeout":        nothing(),
		"--wait":               nothing(),
		"--wait-timeout":       nothing(),
		"--workers":            nothing(),
	}
}

// argumentWords says what arguments are completed to, by the path of the command.
// A command that is not here takes none, or none that can be known.
func argumentWords() map[string]arguments {
	one := func(choices func(*typing) []completions.Choice) arguments {
		return arguments{each: []words{from(choices)}}
	}
	some := func(choices func(*typing) []completions.Choice) arguments {
		return arguments{each: []words{from(choices)}, more: true}
	}
	return map[string]arguments{
		"completion":            {each: []words{oneOf(completions.Shells()...)}},
		"config check":          some((*typing).contexts),
		"config delete-context": one((*typing).contexts),
		"config set-context":    one((*typing).contexts),
		"config use-context":    one((*typing).contexts),
		"feature dependencies":  some((*typing).nameLevel),
		"feature downgrade":     some((*typing).nameLevel),
		"feature plan":          some((*typing).nameLevel),
		"feature upgrade":       some((*typing).nameLevel),
		"help":                  some((*typing).helpTopics),
		"inspect group":         some((*typing).groups),
		"inspect partition":     {each: []words{from((*typing).groups), from((*typing).topics), from((*typing).partitionsOfArgument)}},
		"inspect txn":           some((*typing).transactions),
		"sandbox fault clear":   some((*typing).faults),
		"sandbox fault inject":  {each: []words{oneFrom(faultKinds)}},
		"txn describe":          one((*typing).transactions),
		"txn fence":             some((*typing).transactions),
	}
}

func outputFormats() []completions.Choice {
	return []completions.Choice{
		{Word: string(output.FormatTable), About: "columns for people"},
		{Word: string(output.FormatWide), About: "more columns"},
		{Word: string(output.FormatJSON), About: "one document, see its schema"},
		{Word: string(output.FormatYAML), About: "the same as YAML"},
		{Word: string(output.FormatCSV), About: "the columns of the table"},
	}
}

func dialects() []completions.Choice {
	abouts := map[string]string{"kip": "the text that was voted on", "draft": "the newest draft"}
	var out []completions.Choice
	for _, d := range wire.Dialects() {
		out = append(out, completions.Choice{Word: d.Name, About: abouts[d.Name]})
	}
	return out
}

func releases() []completions.Choice {
	var names []string
	for _, r := range feature.Releases() {
		names = append(names, r.Name)
	}
	slices.Reverse(names) // the newest first
	return completions.Words(names...)
}

// errorNames are the errors of Kafka, by their codes.
func errorNames() []completions.Choice {
	var out []completions.Choice
	for code := int16(-1); code < maxErrorCode; code++ {
		if err := kerr.TypedErrorForCode(code); err != nil && err.Code == code {
			out = append(out, completions.Choice{Word: err.Message, About: err.Description})
		}
	}
	return out
}

// maxErrorCode is above the codes of all errors.
const maxErrorCode = 1000

func faultKinds() []completions.Choice {
	var out []completions.Choice
	for _, k := range sandbox.FaultKinds() {
		out = append(out, completions.Choice{Word: string(k), About: faultAbout(k)})
	}
	return out
}

// settingNames are the settings of a context, with a suffix.
func settingNames(suffix string) []completions.Choice {
	var out []completions.Choice
	for _, s := range config.Settings() {
		if s.InContext() {
			out = append(out, completions.Choice{Word: string(s.Key) + suffix, About: s.About, Open: suffix != ""})
		}
	}
	return out
}

// helpTopics are the commands and topics below the one that is named so far.
func (y *typing) helpTopics() []completions.Choice {
	parent, rest, err := y.cmd.Root().Find(y.args)
	if err != nil || len(rest) > 0 {
		return nil
	}
	var out []completions.Choice
	for _, sub := range parent.Commands() {
		if !sub.Hidden && sub.Name() != cobra.ShellCompRequestCmd {
			out = append(out, completions.Choice{Word: sub.Name(), About: sub.Short})
		}
	}
	return out
}

// contexts are those of the configuration file, and where each leads.
func (y *typing) contexts() []completions.Choice {
	c, err := config.Read(y.d.configPath())
	if err != nil {
		return nil
	}
	var out []completions.Choice
	for _, x := range c.All {
		values := x.Values()
		about := cmp.Or(values[config.BootstrapServer], values[config.CommandConfig])
		if x.Name == c.Current {
			about = strings.TrimSuffix("current, "+about, ", ")
		}
		out = append(out, completions.Choice{Word: x.Name, About: about})
	}
	return out
}

// servers are those that are configured somewhere.
func (y *typing) servers() []completions.Choice {
	var out []completions.Choice
	add := func(servers, about string) {
		for s := range strings.SplitSeq(servers, ",") {
			if s = strings.TrimSpace(s); s != "" && !slices.ContainsFunc(out, func(c completions.Choice) bool { return c.Word == s }) {
				out = append(out, completions.Choice{Word: s, About: about})
			}
		}
	}
	setting, _ := config.Find(config.BootstrapServer)
	add(y.d.Getenv(setting.Env()), setting.Env())
	if c, err := config.Read(y.d.configPath()); err == nil {
		for _, x := range c.All {
			add(x.Values()[config.BootstrapServer], "context "+x.Name)
		}
	}
	return out
}

// settingValue is NAME=VALUE of a setting that a flag may set.
func (y *typing) settingValue() []completions.Choice {
	name, value, chosen := strings.Cut(y.word, "=")
	s, ok := config.Find(config.Key(name))
	var out []completions.Choice
	switch {
	case !chosen:
		secret := func(c completions.Choice) bool {
			s, _ := config.Find(config.Key(strings.TrimSuffix(c.Word, "=")))
			return s.Kind == config.Secret // not on the command line
		}
		return slices.DeleteFunc(settingNames("="), secret)
	case !ok:
		return nil
	case s.Key == config.Dialect:
		out = dialects()
	case s.Key == config.SASLMechanism:
		out = completions.Words(auth.Mechanisms()...)
	case s.Kind == config.Bool:
		out = completions.Words("true", "false")
	case s.Kind == config.File:
		out = filesAt(value)
	}
	return behind(name+"=", out)
}

// topicFile is TOPIC=FILE.
func (y *typing) topicFile() []completions.Choice {
	topic, file, chosen := strings.Cut(y.word, "=")
	if chosen {
		return behind(topic+"=", filesAt(file))
	}
	out := y.topics()
	for i := range out {
		out[i].Word, out[i].Open = out[i].Word+"=", true
	}
	return out
}

func behind(prefix string, choices []completions.Choice) []completions.Choice {
	for i := range choices {
		choices[i].Word = prefix + choices[i].Word
	}
	return choices
}

// filesAt lists the files that path is the beginning of, for words of which only
// the end is one: shells do not agree on where that begins.
func filesAt(path string) []completions.Choice {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(cmp.Or(dir, "."))
	if err != nil {
		return nil
	}
	var out []completions.Choice
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(base, ".") {
			continue
		}
		c := completions.Choice{Word: dir + e.Name()}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			c.Word, c.Open = c.Word+string(filepath.Separator), true
		}
		out = append(out, c)
	}
	return out
}

func (*typing) offsetReset() []completions.Choice {
	return []completions.Choice{
		{Word: "earliest"},
		{Word: "latest"},
		{Word: "by_duration:", About: "an ISO 8601 duration, such as by_duration:PT1H", Open: true},
	}
}

// columns are those of what the command shows, in the case that is typed.
func (t *typing) columns() []completions.Choice {
	names := columnsOf(t.d.viewsOf(commandPath(t.cmd)))
	if t.word == "" || t.word != strings.ToUpper(t.word) {
		for i, name := range names {
			names[i] = strings.ToLower(name)
		}
	}
	return completions.Words(names...)
}
