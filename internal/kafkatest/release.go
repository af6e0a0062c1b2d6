package kafkatest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

// The newest release of each line that tests rely on. [Config.Version] takes any
// other one as well.
const (
	Kafka40 = "4.0.2" // no share groups but in early access, no share.version
	Kafka41 = "4.1.2" // share groups as a preview, share.version 1 not finalized
	Kafka42 = "4.2.2" // share groups, share.version 1
	Kafka44 = "4.4.0" // share.version 2, which is the dead-letter queue (KIP-1191)
)

// release is a release of Kafka on this machine.
type release struct {
	version   string
	classPath string
	// archive is where the JVM's archive of the release's classes is, or will
	// be: application class-data sharing. It depends on the JVM.
	archive string
}

// connect-runtime is needed by Connect's tools alone and brings a web server.
// The broker leaves the choice of what it logs with to its distribution.
var pom = template.Must(template.New("pom").Parse(`<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kshare.kafkatest</groupId>
  <artifactId>kafka</artifactId>
  <version>{{.}}</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{{.}}</version></dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{{.}}</version>
      <exclusions><exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.25.5</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version></dependency>
  </dependencies>
</project>
`))

const buildClassPath = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"

// resolve finds a release in the cache, or has Maven download it.
func resolve(ctx context.Context, version string) (release, error) {
	var b bytes.Buffer
	if err := pom.Execute(&b, version); err != nil {
		return release{}, fmt.Errorf("write pom.xml: %w", err)
	}
	dir, classPath, err := download(ctx, version, "Kafka "+version, b.Bytes())
	if err != nil {
		return release{}, err
	}
	archive, err := archiveName(classPath)
	if err != nil {
		return release{}, err
	}
	return release{version: version, classPath: classPath, archive: filepath.Join(dir, archive)}, nil
}

// download returns a folder of the cache and the class path of what a pom depends
// on, which is found there or is downloaded by Maven. what names it in errors.
func download(ctx context.Context, folder, what string, pom []byte) (dir, classPath string, err error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", "", fmt.Errorf("find %s: %w", what, err)
	}
	dir = filepath.Join(base, "kshare-kafkatest", folder)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", "", fmt.Errorf("find %s: %w", what, err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", "", fmt.Errorf("find %s: %w", what, err)
	}
	defer unlock()
	if classPath, err = readClassPath(filepath.Join(dir, "classpath")); err == nil {
		return dir, classPath, nil
	}
	if err := askMaven(ctx, dir, what, pom); err != nil {
		return "", "", err
	}
	if classPath, err = readClassPath(filepath.Join(dir, "classpath")); err != nil {
		return "", "", fmt.Errorf("class path of %s: %w", what, err)
	}
	return dir, classPath, nil
}

// readClassPath reads a class path and looks whether all of it is still there.
func readClassPath(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	path := strings.TrimSpace(string(b))
	for _, jar := range filepath.SplitList(path) {
		if _, err := os.Stat(jar); err != nil {
			return "", err
		}
	}
	if path == "" {
		return "", errors.New("empty")
	}
	return path, nil
}

func askMaven(ctx context.Context, dir, what string, pom []byte) error {
	file := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(file, pom, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", file, buildClassPath,
		"-Dmdep.outputFile="+filepath.Join(dir, "classpath"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download %s with Maven: %w\n%s", what, err, out)
	}
	return nil
}

// archiveName names the archive by what it has to fit: this JVM and these files.
// A JVM does not use another one, and says nothing.
func archiveName(classPath string) (string, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return "", err
	}
	if java, err = filepath.EvalSymlinks(java); err != nil {
		return "", err
	}
	h := fnv.New64a()
	for _, file := range append(filepath.SplitList(classPath), java) {
		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
	}
	return "classes-" + hex.EncodeToString(h.Sum(nil)) + ".jsa", nil
}

// hasArchive reports whether the archive was made.
func (r release) hasArchive() bool {
	_, err := os.Stat(r.archive)
	return !errors.Is(err, fs.ErrNotExist)
}

// jvm returns the arguments of a java for a main class. Fast to start and small
// counts for more than fast later: JVMs of tests live for seconds.
func (r release) jvm(heap, log4j string) []string {
	args := []string{
		"-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + log4j,
		// An archive that does not fit is not used; its warning would be
		// among the output of a tool.
		"-Xlog:disable", "-Xlog:all=error:stderr",
	}
	if r.hasArchive() {
		args = append(args, "-XX:SharedArchiveFile="+r.archive)
	}
	return append(args, "-cp", r.classPath)
}
